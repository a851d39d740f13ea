"""Files of a job on every server before the next one begins: resuming where no disk is shared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState, Workspace
from remote_tool.errors import ConnectError, JobError, SyncError, UsageError
from remote_tool.workspace import Hooks
from tests.extended.workflows.jobs.test_jobs import until
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.workspace import RunningJob
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

TRAIN = """
import os, pathlib
folder = pathlib.Path(os.environ["RUN"])
checkpoint = folder / "last.txt"
steps = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("resumes at", steps, flush=True)
if os.environ["RANK"] == "0":
    folder.mkdir(exist_ok=True)
    checkpoint.write_text(str(steps + 10))
"""


def write(workspace: Workspace, text: str, run: str, server: str = "first", **more: object) -> RunningJob:
    """Run a job that writes a checkpoint, to its end."""
    command = f"mkdir -p {run}; printf %s '{text}' > {run}/last.txt"
    job = workspace.start(server, command, artifacts=[f"{run}/*"], **more)  # type: ignore[arg-type]
    assert job.wait(timeout=300) is JobState.SUCCEEDED
    return job


def read(servers: tuple[TestServer, TestServer], file: str) -> list[str]:
    return [(server.home / "project" / file).read_text() for server in servers]


@pytest.mark.row(164)
@pytest.mark.slow
def test_a_launch_on_two_servers_resumes_from_the_checkpoint_of_rank_0(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    (workspace.root / "resumed.py").write_text(TRAIN)
    run = {"RUN": "resumed"}
    jobs = workspace.launch_torch("resumed.py", env=run, artifacts=["resumed/*"])
    assert [job.wait(timeout=180) for job in jobs] == [JobState.SUCCEEDED] * 2
    assert not (shared_servers[1].home / "project" / "resumed").exists()
    again = workspace.launch_torch("resumed.py", env=run, artifacts=["resumed/*"], from_job=str(jobs[0].job.key))
    assert [job.wait(timeout=180) for job in again] == [JobState.SUCCEEDED] * 2
    logs = [b"".join(path.read_bytes() for path in logs_of(workspace, job)) for job in again]
    assert [log.count(b"resumes at 10\n") for log in logs] == [1, 1]
    assert read(shared_servers, "resumed/last.txt") == ["20", "10"]


def logs_of(workspace: Workspace, job: RunningJob) -> list[Path]:
    workspace.pull_logs()
    return list(workspace.config.local.job(job.id).glob("ranks/*/*/out"))


@pytest.mark.row(164)
def test_files_of_a_later_job_replace_those_of_an_earlier_one_and_nothing_else(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    one = write(workspace, "one", "replaced")
    outputs = [server.home / "project" / "replaced" / "own.txt" for server in shared_servers]
    write(workspace, "no more", "replaced", "second", from_job=one.id)
    for output in outputs:
        output.write_text("of this server")
    two = write(workspace, "two!", "replaced")
    workspace.start("second", "cp replaced/last.txt replaced/seen.txt", from_job=two.id, overwrite=True).wait(
        timeout=300
    )
    assert read(shared_servers, "replaced/last.txt") == ["two!", "two!"]
    assert (outputs[1].with_name("seen.txt")).read_text() == "two!"
    assert [output.read_text() for output in outputs] == ["of this server"] * 2


@pytest.mark.row(164)
def test_what_a_server_has_newer_is_not_overwritten_and_nothing_starts_there(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    job = write(workspace, "old", "newer")
    folder = shared_servers[1].home / "project" / "newer"
    folder.mkdir()
    (folder / "last.txt").write_text("newer")
    with pytest.raises(
        SyncError, match=r"^second: some files were not sent: the server has its own version.* newer/last.txt"
    ) as no:
        workspace.start("second", "touch newer/started", from_job=job.id)
    assert f"remote-tool job-pull {job.job.key} --to-all --overwrite" in no.value.hint
    assert sorted(path.name for path in folder.iterdir()) == ["last.txt"]
    sent = remote_tool("job-pull", str(job.job.key), "--to-all", "--json", cwd=workspace.root)
    assert sent.returncode == 3, sent.stderr
    assert [each["server"] for each in json.loads(sent.stdout)["sent_to"]] == ["first"]
    sent = remote_tool("job-pull", str(job.job.key), "--to-all", "--overwrite", cwd=workspace.root)
    assert sent.returncode == 0, sent.stderr
    assert read(shared_servers, "newer/last.txt") == ["old", "old"]


def test_what_a_running_job_has_written_until_now_is_taken_and_that_is_said(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    running = workspace.start(
        "first", "mkdir -p running; echo now > running/last.txt; sleep 600", artifacts=["running/*"]
    )
    said: list[str] = []
    try:
        until((shared_servers[0].home / "project" / "running" / "last.txt").exists)
        listening = Workspace.find(workspace.root, Hooks(report=lambda event: said.append(str(event))))
        assert listening.start("second", "cat running/last.txt", from_job=running.id).wait(timeout=300).is_finished
    finally:
        running.kill(grace=1)
    assert any(f"job {running.job.key} is running; using what it has written so far" in each for each in said)
    assert read(shared_servers, "running/last.txt") == ["now\n", "now\n"]


@pytest.mark.slow
def test_the_copy_here_is_used_when_the_server_of_the_job_is_gone(make_server: MakeServer, tmp_path: Path) -> None:
    lost, second = make_server("lost"), make_server("second")
    workspace = Workspace.find(make_project(tmp_path / "project", [lost, second]))
    workspace.prepare()
    whole = write(workspace, "whole", "whole", "lost")
    whole.pull()
    not_here = workspace.start("lost", "mkdir away; echo > away/last.txt; touch done", artifacts=["away/*"])
    until((lost.home / "project" / "done").exists)
    lost.stop()
    job = workspace.start("second", "cat whole/last.txt", from_job=whole.id)
    assert list(job.tail()) == ["whole"]
    sent = remote_tool("job-pull", str(whole.job.key), "--to-all", cwd=workspace.root)
    assert "lost" in sent.stderr
    with pytest.raises(ConnectError, match="lost"):
        workspace.start("second", "cat away/last.txt", from_job=not_here.id)
    assert not (second.home / "project" / "away").exists()


def test_a_job_that_does_not_exist_or_brings_no_files_is_refused_before_anything_starts(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="No job 'nothing'"):
        workspace.start("first", "true", from_job="nothing")
    bare = workspace.start("first", "true")
    with pytest.raises(UsageError, match="has no artifacts") as refused:
        workspace.start("second", "true", from_job=bare.id)
    assert f"job-pull {bare.job.key} --artifact" in refused.value.hint
    empty = workspace.start("first", "true", artifacts=["no/such/*"])
    empty.wait(timeout=300)
    with pytest.raises(JobError, match=r"wrote no file that matches no/such/\*"):
        workspace.start("second", "true", from_job=empty.id)
    ran = remote_tool("job-pull", "--to-all", cwd=workspace.root)
    assert (ran.returncode, "--to-all needs exactly one job" in ran.stderr) == (2, True)
