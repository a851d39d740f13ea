"""Start jobs again from their records, and compare them, on real servers."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import Job, JobSelection, JobState, LaunchRequest, StartRequest, Workspace
from remote_tool.errors import UsageError
from remote_tool.jobs.job import new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.protocol.job_fields import REQUEST_FIELDS
from remote_tool.workflows import git_state
from remote_tool.workflows.events import Notice
from remote_tool.workflows.fan_out.request import FanOutRequest
from remote_tool.workflows.start import kept_code
from remote_tool.workflows.sweep.request import SweepRequest
from tests.extended.workflows.test_git_state import git
from tests.processes import open_files, parents
from tests.program import remote_tool
from tests.project import make_project, write_configuration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.workflows.selection import JobsAnswer
    from tests.sshd import TestServer

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path, shared_servers: tuple[TestServer, TestServer], shared_project: Path) -> Path:
    """A project of its own, with the shared servers, that sends nothing: they are prepared for the shared one."""
    assert shared_project.is_dir()
    return make_project(tmp_path / "project", shared_servers)


@pytest.fixture
def notices(project: Path) -> tuple[Workspace, list[str]]:
    """The workspace, and what its workflows report."""
    return listening(project)


def listening(project: Path) -> tuple[Workspace, list[str]]:
    said: list[str] = []
    workspace = Workspace.find(project)

    def report(event: object) -> None:
        # Not those of a slow or full machine.
        if isinstance(event, Notice) and event.text.startswith("job "):
            said.append(event.text)

    workspace.hooks = replace(workspace.hooks, report=report)
    return workspace, said


def ended(workspace: Workspace, jobs: Sequence[Job]) -> list[Job]:
    selection = JobSelection(tuple(job.id for job in jobs), stopped=True, hidden=True)
    done = {job.id: job for job in workspace.wait_jobs(selection, timeout=120).jobs}
    workspace.pull_logs(selection)
    return [done[job.id] for job in jobs]


def printed(workspace: Workspace, job: Job) -> str:
    return (workspace.config.local.job(job.id) / "job.out").read_text()


def rerun_unsent(workspace: Workspace, *jobs: str, **changes: object) -> JobsAnswer:
    """Start jobs again without a sync, which would cost time."""
    requests = workspace.plan_rerun(*jobs, **changes)  # type: ignore[arg-type]
    return workspace.start_requests([replace(request, sync=False, env=None) for request in requests])


@pytest.mark.row(301)
def test_a_job_is_started_again_with_everything_that_its_record_has(project: Path) -> None:
    workspace = Workspace.find(project)
    request = StartRequest(
        'echo "$LR in $(basename "$PWD")"; nice',
        ("second",),
        {"LR": "0.1"},
        ("sweep", "two words"),
        sync=False,
        artifacts=("out/*.pt", ArtifactPattern("log/*", 2)),
        devices=("0", "1"),
        nice=5,
        name="warm up",
        workdir="",
        terminal="command",
    )
    (first,) = ended(workspace, workspace.start_jobs(request).jobs)
    (repeat,) = ended(workspace, rerun_unsent(workspace, str(first.key), env={"LR": "0.1"}).jobs)
    assert (printed(workspace, repeat), repeat.rerun_of) == (printed(workspace, first), first.id)
    kept = ("command", "server", "tags", "artifacts", "gpus", "nice", "name", "workdir", "terminal", "variables")
    assert {name: getattr(repeat, name) for name in kept} == {name: getattr(first, name) for name in kept}
    assert repeat.variables == ("LR",)
    assert repeat.id != first.id
    assert {each.field for each in workspace.diff(str(first.key), repeat.id).differences} <= {"duration"}


@pytest.mark.row(302)
def test_a_variable_without_a_value_is_named_and_nothing_starts(
    project: Path, monkeypatch: pytest.MonkeyPatch, notices: tuple[Workspace, list[str]]
) -> None:
    workspace, said = notices
    variables = {"TOKEN": "then", "HOME_OF_DATA": "/data", "HOME": "/elsewhere"}
    plain, job = workspace.start_jobs(
        StartRequest("true", ("first",), sync=False), StartRequest("true", ("first",), variables, sync=False)
    ).jobs
    known = len(workspace.select_local(JobSelection(stopped=True)))
    with pytest.raises(UsageError, match=r"not known here: HOME, HOME_OF_DATA, TOKEN$") as caught:
        workspace.rerun(str(plain.key), str(job.key))
    assert caught.value.hint.startswith("--env HOME VALUE --env HOME_OF_DATA VALUE --env TOKEN VALUE")
    refused = remote_tool("job-rerun", str(job.key), "--env", "HOME", "/elsewhere", cwd=project)
    assert (refused.returncode, "HOME_OF_DATA, TOKEN" in refused.stderr) == (2, True)
    assert len(workspace.select_local(JobSelection(stopped=True))) == known
    monkeypatch.setenv("TOKEN", "now")
    given = {"HOME_OF_DATA": "/more", "HOME": "/elsewhere"}
    repeat = rerun_unsent(workspace, str(job.key), env=given, command='echo "$TOKEN $HOME_OF_DATA $HOME"')
    assert printed(workspace, *ended(workspace, repeat.jobs)) == "now /more /elsewhere\n"
    assert f"job {job.key}: from this command's environment: TOKEN" in said
    assert not any("then" in text for text in said)


@pytest.mark.row(302)
def test_variables_of_the_configuration_have_its_present_values_and_are_missed_when_they_are_gone(
    project: Path, shared_servers: tuple[TestServer, TestServer]
) -> None:
    write_configuration(project, shared_servers, env={"EPOCHS": "3"})
    workspace = Workspace.find(project)
    show = 'echo "$EPOCHS"'
    configured, given = workspace.start_jobs(
        StartRequest(show, ("first",), sync=False), StartRequest(show, ("first",), {"EPOCHS": "9"}, sync=False)
    ).jobs
    write_configuration(project, shared_servers, env={"EPOCHS": "4"})
    changed = Workspace.find(project)
    jobs = ended(changed, rerun_unsent(changed, str(configured.key), str(given.key)).jobs)
    assert [printed(changed, job) for job in jobs] == ["4\n", "4\n"]
    write_configuration(project, shared_servers)
    without = Workspace.find(project)
    for job in (configured, given):
        with pytest.raises(UsageError, match="EPOCHS"):
            without.plan_rerun(str(job.key))


def test_names_of_variables_are_asked_of_the_server_for_a_record_of_an_older_version(
    shared_servers: tuple[TestServer, TestServer], notices: tuple[Workspace, list[str]]
) -> None:
    workspace, said = notices
    (job,) = workspace.start_jobs(StartRequest("true", ("first",), {"TOKEN": "x"}, sync=False, devices=("0",))).jobs
    record = workspace.config.local.job(job.id) / "job.yaml"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(line for line in lines if "variables: " not in line))
    with pytest.raises(UsageError, match=r"not known here: TOKEN$"):
        workspace.plan_rerun(job.id)
    ended(workspace, [job])
    record.write_text("".join(line for line in record.read_text().splitlines(True) if "variables: " not in line))
    shutil.rmtree(shared_servers[0].home / "project" / ".jobs" / job.id)
    assert len(workspace.plan_rerun(job.id)) == 1
    assert any("the names of its variables are not known" in text for text in said)


@pytest.mark.row(303)
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_changed_project_is_reported_before_its_code_runs_again(
    tmp_path: Path, shared_servers: tuple[TestServer, TestServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine has its time.
    monkeypatch.setattr(git_state, "SECONDS", 60)
    monkeypatch.setattr(kept_code, "GIT_SECONDS", 60)
    project = make_project(tmp_path / "again", shared_servers[:1], name="again")
    (project / "train.py").write_text("print('first')\n")
    (project / ".gitignore").write_text(".remote\n")
    git(project, "init")
    git(project, "add", "-A")
    git(project, "commit", "-m", "first")
    workspace, said = listening(project)
    workspace.prepare()
    (job,) = ended(workspace, workspace.start_jobs(StartRequest("python train.py")).jobs)
    said.clear()
    (same,) = ended(workspace, workspace.rerun(job.id).jobs)
    assert (printed(workspace, same), said) == ("first\n", [])
    (project / "train.py").write_text("print('second')\n")
    (project / "more.py").write_text("")
    git(project, "add", "-A")
    git(project, "commit", "-m", "second")
    (project / "train.py").write_text("print('third')\n")
    new, old = git(project, "log", "--format=%H").split()
    (changed,) = ended(workspace, workspace.rerun(job.id).jobs)
    then, now = f"commit {old[:7]} of main", f"commit {new[:7]} of main with uncommitted changes"
    files = "more.py, train.py differ from that commit; --kept-code is for jobs with --frozen"
    assert (printed(workspace, changed), said) == ("third\n", [f"job {job.key} ran {then}; now running {now}: {files}"])
    compared = remote_tool("job-diff", str(job.key), str(changed.key), cwd=project)
    fields = {line.split()[0] for line in compared.stdout.partition("\n\n")[0].splitlines()}
    assert {"git.commit", "git.dirty"} <= fields <= {"FIELD", "git.commit", "git.dirty", "duration"}
    assert "-print('first')\n+print('second')\n" in compared.stdout
    assert compared.stderr.startswith(f"code: job {changed.key} also had changes that were not committed")


@pytest.mark.row(304)
def test_a_job_starts_again_on_another_server_with_another_command(project: Path) -> None:
    workspace = Workspace.find(project)
    (job,) = workspace.start_jobs(StartRequest("exit 1", ("first",), sync=False, devices=("GPU-1234",))).jobs
    ended(workspace, [job])
    (moved,) = ended(workspace, rerun_unsent(workspace, job.id, servers=["second"], command="exit 4").jobs)
    assert (moved.server, moved.exit_code, moved.rerun_of, moved.gpus) == ("second", 4, job.id, None)
    ran = remote_tool("job-diff", str(job.key), str(moved.key), "--json", cwd=project)
    document = json.loads(ran.stdout)
    assert (ran.returncode, [each["id"] for each in document["jobs"]]) == (0, [job.id, moved.id])
    found = {each["field"]: each["values"] for each in document["differences"]}
    assert {name: found[name] for name in ("command", "server", "exit_code", "gpus")} == {
        "command": ["exit 1", "exit 4"],
        "server": ["first", "second"],
        "exit_code": [1, 4],
        "gpus": [["GPU-1234"], None],
    }


@pytest.mark.row(305)
def test_a_launch_is_started_again_as_a_whole_whichever_node_is_named(project: Path) -> None:
    workspace = Workspace.find(project)
    request = LaunchRequest(
        'echo "$NODE_RANK of $NNODES at $MASTER_PORT: $A"',
        ("second", "first"),
        environment={"A": "1"},
        launcher="shell",
        tags=("pair",),
        max_restarts=2,
        lost_after=30,
        sync=False,
        name="both",
    )
    nodes = ended(workspace, workspace.launch(request).jobs)
    (plan,) = workspace.plan_rerun(nodes[1].id, nodes[0].id, env={"A": "2"})
    assert isinstance(plan, LaunchRequest)
    off = replace(request, env=None, frozen=False, max_duration=0, stop_if_idle=0, stop_signal="SIGTERM")
    assert plan == replace(off, environment={"A": "2"}, env=None, rerun_of=nodes[0].id, sync=True, workdir="")
    repeats = ended(workspace, workspace.start_requests([replace(plan, sync=False, env=None)]).jobs)
    assert [(job.server, job.node_rank, job.tags, job.rerun_of) for job in repeats] == [
        ("second", 0, ("pair", "master"), nodes[0].id),
        ("first", 1, ("pair",), nodes[0].id),
    ]
    assert repeats[0].launch_id != nodes[0].launch_id
    assert [printed(workspace, job).partition(" at ")[0] for job in repeats] == ["0 of 2", "1 of 2"]
    assert all(printed(workspace, job).endswith(": 2\n") for job in repeats)
    compared = {each.field for each in workspace.diff(nodes[0].id, repeats[0].id).differences}
    assert compared <= {"duration"}


@pytest.mark.row(305)
def test_a_part_of_a_launch_is_not_taken_for_the_whole(project: Path) -> None:
    workspace = Workspace.find(project)
    request = LaunchRequest("true", ("first", "second"), launcher="shell", sync=False)
    first, second = ended(workspace, workspace.launch(request).jobs)
    shutil.rmtree(workspace.config.local.job(second.id))
    with pytest.raises(UsageError, match="had 2 nodes, of which 1 can be found"):
        workspace.plan_rerun(first.id)


def test_what_is_started_by_other_commands_is_left_to_them(project: Path) -> None:
    workspace = Workspace.find(project)
    answer = workspace.fan_out(FanOutRequest("true", ("first",), per_server=1, sync=False), follow=False)
    shell = workspace.start_jobs(StartRequest("shell --keep a", ("first",), sync=False, terminal="shell")).jobs[0]
    with pytest.raises(UsageError, match="is a part of fan-out") as part:
        workspace.plan_rerun(answer.jobs[0].id)
    assert "helper-fan-out --resume" in part.value.hint
    with pytest.raises(UsageError, match="is a shell"):
        workspace.plan_rerun(shell.id)
    workspace.stop_jobs(JobSelection((shell.id,)), signal="SIGKILL")
    ended(workspace, [answer.jobs[0], shell])
    for job, command in (answer.jobs[0], "helper-fan-out --resume"), (shell, "shell --server first --keep NAME"):
        shown = remote_tool("job-show", job.id, cwd=project).stdout
        assert f"remote-tool {command}" in shown
        assert "job-rerun" not in shown
    for words, message in (((), "No job is selected"), (("99999",), "No job '99999'")):
        ran = remote_tool("job-rerun", *words, cwd=project)
        assert (ran.returncode, message in ran.stderr) == (2, True)


def recorded(workspace: Workspace, *jobs: Job) -> list[Job]:
    """Record jobs as if they had been started here."""
    return Registry(workspace.config.local.jobs).adopt(jobs)


@pytest.mark.row(306)
def test_only_a_job_that_never_began_is_put_back_with_its_settings(project: Path) -> None:
    workspace = Workspace.find(project)
    queued = Job(
        *(0, new_job_id(), "first", "true", JobState.KILLED, ("sweep",)),
        gpu_count=2,
        priority=7,
        backfill=True,
        variables=("LR",),
        gpus=("0", "1"),
    )
    of_sweep = replace(queued, id=new_job_id(), launch_id=secrets.token_hex(16), node_rank=0, tags=("sweep-1a2b3c",))
    begun = replace(queued, id=new_job_id(), started_at=5.0)
    plain = replace(queued, id=new_job_id(), gpu_count=None)
    for job, problem in ((begun, "because it began"), (plain, "was not queued")):
        (known,) = recorded(workspace, job)
        with pytest.raises(UsageError, match=f"Job {known.key} .*{problem}") as refused:
            workspace.requeue(job.id, env={"LR": "1"})
        assert refused.value.hint.startswith(f"remote-tool job-rerun {known.key}")
    (known,) = recorded(workspace, of_sweep)
    with pytest.raises(UsageError, match=f"Job {known.key} is a part of a sweep") as refused:
        workspace.requeue(of_sweep.id, env={"LR": "1"})
    assert refused.value.hint == "remote-tool helper-sweep --resume sweep-1a2b3c"
    (known,) = recorded(workspace, queued)
    with pytest.raises(UsageError, match=r"not known here: LR$"):
        workspace.requeue(queued.id)
    (request,) = workspace.plan_requeue(queued.id, env={"LR": "1"})
    assert isinstance(request, StartRequest)
    assert request.job_id not in {"", queued.id}
    assert [request] == [
        StartRequest(
            *("true", ("first",), {"LR": "1"}, ("sweep",)),
            gpus=2,
            priority=7,
            backfill=True,
            stop_signal="SIGTERM",
            workdir="",
            rerun_of=queued.id,
            # What the record does not have was off, whatever is configured now.
            frozen=False,
            max_duration=0,
            stop_if_idle=0,
            retries=0,
            retry_on=(),
            job_id=request.job_id,
        )
    ]


@pytest.mark.row(306)
def test_a_job_waits_for_the_newest_repetition_of_the_one_that_it_waited_for(
    notices: tuple[Workspace, list[str]],
) -> None:
    workspace, said = notices
    (earlier,) = ended(workspace, workspace.start_jobs(StartRequest("exit 1", ("first",), sync=False)).jobs)
    waiting = Job(0, new_job_id(), "first", "true", JobState.KILLED, after=(earlier.id,), variables=())
    (known,) = recorded(workspace, waiting)
    (once,) = ended(workspace, rerun_unsent(workspace, earlier.id).jobs)
    (newest,) = ended(workspace, rerun_unsent(workspace, once.id, command="true").jobs)
    (request,) = workspace.plan_requeue(waiting.id)
    (job,) = workspace.start_requests([replace(request, sync=False, env=None)]).jobs
    assert (job.after, job.rerun_of) == ((newest.id,), waiting.id)
    (done,) = ended(workspace, [job])
    assert done.state is JobState.SUCCEEDED
    (moved,) = workspace.plan_rerun(waiting.id, servers=["second"])
    assert moved.after == ()
    assert f"job {known.key} does not wait for 1 job that second does not have" in said


@pytest.mark.row(307)
def test_a_job_runs_again_in_the_copy_of_its_code_as_long_as_its_server_has_it(
    tmp_path: Path, shared_servers: tuple[TestServer, TestServer]
) -> None:
    server = shared_servers[0]
    project = make_project(tmp_path / "frozen", (server,), name="frozen")
    (project / "train.py").write_text("print('first')\n")
    workspace, said = listening(project)
    workspace.prepare()
    (job,) = ended(workspace, workspace.start_jobs(StartRequest("python train.py", frozen=True)).jobs)
    (project / "train.py").write_text("print('second')\n")
    said.clear()
    (same,) = ended(workspace, workspace.rerun(job.id).jobs)
    assert (printed(workspace, same), same.copy) == ("first\n", job.copy)
    assert [line for line in said if f"job {job.key}: running the kept code" in line and "train.py differs" in line]
    (current,) = ended(workspace, workspace.rerun(same.id, current_code=True).jobs)
    assert printed(workspace, current) == "second\n"
    assert current.copy not in {"", job.copy}
    shutil.rmtree(server.home / "frozen" / ".remote-scripts" / "copies" / job.copy)
    said.clear()
    (again,) = ended(workspace, workspace.rerun(job.id).jobs)
    assert (printed(workspace, again), again.copy) == ("second\n", current.copy)
    assert said[0] == f"job {job.key}: the copy of its code is gone from first"


def test_every_setting_of_a_job_is_repeated_or_left_out_on_purpose() -> None:
    by_hand = {"server", "tags", "command", "gpus", "gpu_count", "after", "variables", "rerun_of", "launch_options"}
    of_the_start = {"id", "launch_id", "node_rank", "rank_offset", "started_by", "created_at", "configured_variables"}
    of_a_sweep = {"slots"}
    # A rerun is for the server of its job.
    of_any_server = {"any_of"}
    of_the_code = {"git_commit", "git_branch", "git_dirty", "copy", "environment_hash", "snapshot"}
    of_a_launcher = {"grace"}
    left_out = by_hand | of_the_start | of_the_code | of_a_launcher | of_a_sweep | of_any_server
    repeated = {field.option or field.name for field in REQUEST_FIELDS if field.name not in left_out}
    assert repeated == repeated & {field.name for field in fields(StartRequest)}


def wait_until_queued(workspace: Workspace, job: Job) -> None:
    """Wait for the answer of a server that was slow to start a job."""
    deadline = time.monotonic() + 300
    while workspace.list_jobs(JobSelection((job.id,))).jobs[0].state is not JobState.QUEUED:
        assert time.monotonic() < deadline, "the job is not queued"


def kill_supervisor(workspace: Workspace, job: Job) -> None:
    """Kill the supervisor of a job that has not begun, which holds the job's reserve open, until its server knows."""
    deadline = time.monotonic() + 300
    selection = JobSelection((job.id,), stopped=True)
    while workspace.list_jobs(selection).jobs[0].state is not JobState.LOST:
        assert time.monotonic() < deadline, "the job is not lost"
        for pid in parents():
            if any(path.endswith(f"{job.id}/reserve") for path in open_files(pid).values()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.row(306)
def test_a_job_that_lost_its_place_with_its_supervisor_is_put_back_once(project: Path, tmp_path: Path) -> None:
    workspace = Workspace.find(project)
    go = tmp_path / "go"
    earlier = workspace.start("first", f"until test -e {go}; do sleep 0.05; done", sync=False).job
    waiting = StartRequest("echo $A", ("first",), {"A": "1"}, sync=False, after=(earlier.id,), frozen=False)
    (job,) = workspace.start_jobs(waiting).jobs
    wait_until_queued(workspace, job)
    with pytest.raises(UsageError, match=f"Job {job.key} is still in the queue"):
        workspace.requeue(job.id, env={"A": "2"})
    kill_supervisor(workspace, job)
    (request,) = workspace.plan_requeue(job.id, env={"A": "2"})
    # Another terminal does the same at the same time.
    (twin,) = workspace.plan_requeue(job.id, env={"A": "3"})
    (back,) = workspace.start_requests([replace(request, sync=False, env=None)]).jobs
    (also,) = workspace.start_requests([replace(twin, sync=False, env=None)]).jobs
    assert (also.id, also.key) == (back.id, back.key)
    wait_until_queued(workspace, back)
    assert (back.after, back.rerun_of) == ((earlier.id,), job.id)
    with pytest.raises(UsageError, match=f"Job {job.key} has been put back already, as job {back.key}"):
        workspace.requeue(job.id, env={"A": "2"})
    go.touch()
    (done,) = ended(workspace, [back])
    assert (done.state, printed(workspace, done)) == (JobState.SUCCEEDED, "2\n")


def test_a_job_of_a_sweep_is_repeated_as_a_job_of_its_own(project: Path) -> None:
    workspace = Workspace.find(project)
    request = SweepRequest(
        "echo {x}", ("first",), tags=("mine",), sync=False, grid={"x": "1,2"}, per_server=1, frozen=False
    )
    second = max(ended(workspace, workspace.sweep(request).jobs), key=lambda job: job.key)
    (again,) = ended(workspace, rerun_unsent(workspace, second.id).jobs)
    assert (printed(workspace, again), again.tags, again.launch_id, again.after) == ("2\n", ("mine",), "", ())
