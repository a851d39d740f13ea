"""Which commit a job runs: asked of the real git, and never waited for long."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, LaunchRequest, StartRequest, Workspace
from remote_tool.workflows import git_state
from remote_tool.workflows.git_state import GitState, while_asking_git
from tests.extended.workflows.jobs.test_jobs import until
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")

SHOW = 'echo "$REMOTE_TOOL_GIT_COMMIT ${REMOTE_TOOL_GIT_BRANCH-none} ${REMOTE_TOOL_GIT_DIRTY-none}"'


def git(folder: Path, *words: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    person = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *person, *words], cwd=folder, env={**os.environ, **own}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine has its time."""
    monkeypatch.setattr(git_state, "SECONDS", 60)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "train.py").write_text("print(1)\n")
    (root / "part").mkdir()
    (root / "part" / "a.py").write_text("print(2)\n")
    git(root, "init")
    git(root, "add", "-A")
    git(root, "commit", "-m", "first")
    return root


async def ask(root: Path) -> GitState | None:
    return (await while_asking_git(root, asyncio.sleep(0)))[1]


@pytest.mark.row(163)
@pytest.mark.usefixtures("patient")
async def test_changed_and_new_files_of_the_project_make_it_dirty_and_no_others(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    clean = GitState(commit, "main", dirty=False)
    assert await ask(repository) == clean
    assert await ask(repository / "part") == clean
    for folder in (repository, repository / "part"):
        (folder / ".remote").mkdir()
        (folder / ".remote" / "configs.yaml").write_text("")
    assert await ask(repository / "part") == clean
    (repository / "train.py").write_text("print(3)\n")
    assert await ask(repository) == GitState(commit, "main", dirty=True)
    assert await ask(repository / "part") == clean
    (repository / "part" / "new.py").write_text("")
    assert await ask(repository / "part") == GitState(commit, "main", dirty=True)


@pytest.mark.usefixtures("patient")
def test_artifacts_that_came_home_into_the_project_do_not_make_it_dirty(
    make_server: MakeServer, tmp_path: Path
) -> None:
    root = make_project(tmp_path / "project", [make_server("first")], artifacts_folder="results [1]")
    git(root, "init")
    git(root, "add", "hello.py")
    git(root, "commit", "-m", "first")
    workspace = Workspace.find(root)
    workspace.prepare()
    first = workspace.start("first", f"echo weights > model.pt; {SHOW}", artifacts=["model.pt"])
    first.wait()
    assert [path.parent.parent for path in first.pull()] == [root / "results [1]"]
    (second,) = workspace.start("first", SHOW).tail()
    assert second.endswith(" main 0")
    (root / "results 1").mkdir()
    (root / "results 1" / "new.py").write_text("")
    (third,) = workspace.start("first", SHOW).tail()
    assert third.endswith(" main 1")


@pytest.mark.row(163)
@pytest.mark.usefixtures("patient")
async def test_without_a_branch_a_commit_or_a_repository_that_much_is_left_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "worktree", "add", "-b", "other/half", str(tmp_path / "tree"))
    assert await ask(tmp_path / "tree") == GitState(commit, "other/half", dirty=False)
    git(repository, "checkout", "--detach")
    assert await ask(repository) == GitState(commit, "", dirty=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert await ask(empty) is None
    git(empty, "init")
    assert await ask(empty) is None
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", str(empty / ".git"))
    assert await ask(repository) == GitState(commit, "", dirty=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert await ask(repository) is None


@pytest.mark.row(163)
@pytest.mark.usefixtures("patient")
async def test_nothing_that_a_repository_names_is_run_and_nothing_written(repository: Path) -> None:
    ran = repository.parent / "it-ran"
    script = repository.parent / "script"
    script.write_text(f'#!/bin/sh\necho "$0" >>{shlex.quote(str(ran))}\n')
    script.chmod(0o700)
    hooks = repository.parent / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(script)
    git(repository, "config", "core.fsmonitor", str(script))
    git(repository, "config", "core.hooksPath", str(hooks))
    # git would write the new times of files into the index.
    os.utime(repository / "train.py", (0, 0))
    ran.unlink(missing_ok=True)
    index = (repository / ".git" / "index").stat()
    before = (index.st_ino, index.st_mtime_ns)
    assert (await ask(repository)) == GitState(
        git(repository, "-c", "core.fsmonitor=false", "rev-parse", "HEAD"), "main", dirty=False
    )
    assert not ran.exists()
    index = (repository / ".git" / "index").stat()
    assert (index.st_ino, index.st_mtime_ns) == before
    # The trap works.
    git(repository, "status")
    assert ran.exists()


@pytest.mark.row(163)
@pytest.mark.slow
async def test_a_git_that_takes_long_is_not_waited_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answered = shutil.which("git"), tmp_path / "answered"
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "git"
    sleep = f"sleep {4321 + os.getpid() / 10**9:.9f}"
    slow.write_text(
        f'#!/bin/sh\ncase " $* " in *" status "*) {sleep} & wait;; *) {real} "$@"; touch \'{answered}\';; esac\n'
    )
    slow.chmod(0o700)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_state, "SECONDS", 3.0)
    # As long as a sync takes; the commit is known before its end.
    work = asyncio.to_thread(until, answered.exists)
    _, found = await asyncio.wait_for(while_asking_git(repository, work), 60)
    assert found is not None
    assert (found.branch, found.dirty) == ("main", None)
    # A program that was killed is there for a moment longer.
    until(lambda: not subprocess.run(["pgrep", "-f", sleep], check=False, capture_output=True).stdout)


@pytest.fixture
def project(tmp_path: Path, shared_servers: tuple[TestServer, TestServer]) -> Path:
    """A project in a repository, whose branch has a hostile name."""
    root = make_project(tmp_path / "project", shared_servers, name="in-git")
    git(root, "init")
    git(root, "add", "hello.py")
    git(root, "commit", "-m", "first")
    git(root, "checkout", "-b", "evil/\u202e$(touch\N{NO-BREAK SPACE}x);'\"")
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    return root


def by_id(jobs: Sequence[Job]) -> JobSelection:
    return JobSelection(jobs=tuple(job.id for job in jobs), stopped=True)


@pytest.mark.row(163)
@pytest.mark.slow
def test_a_job_says_what_it_runs_in_its_variables_its_record_and_as_json(
    project: Path, shared_servers: tuple[TestServer, TestServer]
) -> None:
    commit, branch = git(project, "rev-parse", "HEAD"), git(project, "branch", "--show-current")
    done = remote_tool("job-run", "--server", "first", "--cmd", SHOW, "--follow", cwd=project)
    assert done.stdout == f"{commit} {branch} 0\n", done.stderr
    (project / "hello.py").write_text("print('changed')\n")
    started = remote_tool("job-run", "--server", "first", "--cmd", SHOW, "--json", cwd=project)
    (job,) = json.loads(started.stdout)["jobs"]
    assert job["git"] == {"commit": commit, "branch": branch, "dirty": True}
    assert "\u202e" not in started.stdout
    record = (project / ".remote" / "jobs" / job["id"] / "job.yaml").read_text()
    assert f'git_commit: "{commit}"\n' in record
    assert "git_dirty: true\n" in record
    again = make_project(project.parent / "again", shared_servers, name="in-git")
    listed = json.loads(remote_tool("job-list", "--stopped", "--json", cwd=again).stdout)["jobs"]
    assert [each["git"] for each in listed if each["id"] == job["id"]] == [job["git"]]
    # Nobody knows what is there when nothing is sent.
    unsent = remote_tool("job-run", "--server", "first", "--cmd", SHOW, "--no-sync", "--json", cwd=project)
    assert json.loads(unsent.stdout)["jobs"][0]["git"] is None


@pytest.mark.row(163)
@pytest.mark.slow
def test_launches_and_the_parts_of_a_fan_out_say_it_too(project: Path) -> None:
    commit = git(project, "rev-parse", "HEAD")
    workspace = Workspace.find(project)
    jobs = list(workspace.launch(LaunchRequest(SHOW, launcher="shell")).jobs)
    shards = remote_tool("helper-fan-out", "--cmd", "true", "--total", "2", "--json", cwd=project)
    assert [each["git"]["commit"] for each in json.loads(shards.stdout)["jobs"]] == [commit] * 2
    own = StartRequest(SHOW, ("first",), {"REMOTE_TOOL_GIT_COMMIT": "mine"})
    jobs += workspace.start_jobs(own).jobs
    assert [job.git_commit for job in jobs] == [commit] * 3
    shown: dict[str, bytes] = {}
    workspace.follow_jobs(
        by_id(jobs), lambda chunk: shown.update({chunk.job.id: shown.get(chunk.job.id, b"") + chunk.data})
    )
    assert [shown[job.id].decode().split()[0] for job in jobs] == [commit, commit, "mine"]
    # A launch that is started again runs the same.
    request = LaunchRequest("[ -e ~/once ] || { touch ~/once; exit 1; }", max_restarts=1, launcher="shell")
    followed = workspace.follow_launch(request, workspace.launch(request).jobs, lambda _chunk: None)
    assert (followed.exit_code, [job.git_commit for job in followed.jobs]) == (0, [commit] * 2)
