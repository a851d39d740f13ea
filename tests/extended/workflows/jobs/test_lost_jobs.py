"""A job is lost only where its server has evidence of that, and a later look that finds it corrects it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobState, RunningJob, Workspace
from remote_tool.errors import JobError, RemoteToolError
from remote_tool.jobs.job import JobSpec, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import ignore
from remote_tool.workflows.jobs import follow
from remote_tool.workflows.jobs.follow import FollowOptions, follow_server
from remote_tool.workflows.jobs.log_streams import LogListener
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from remote_tool.workspace import Hooks
from tests.extended.workflows.jobs.test_jobs import begin, begin_and_run, by_id, log_of, remote_folder, until
from tests.figures import record_case
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import compile_agent, make_project
from tests.small_disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

    Away = Callable[[TestServer], AbstractContextManager[object]]

UNTIL_TOLD = "until test -e $HOME/go.$REMOTE_TOOL_JOB_ID; do sleep 0.05; done; echo done; exit 7"


@pytest.fixture
def server(make_server: MakeServer) -> TestServer:
    return make_server("first")


@pytest.fixture
def desk(server: TestServer, tmp_path: Path) -> Workspace:
    workspace = Workspace.find(make_project(tmp_path / "here", [server]))
    workspace.prepare()
    # Or Python makes the folder of a module anew for its compiled form, if a test renames it meanwhile.
    compile_agent(server.home / "project")
    return workspace


def let_end(server: TestServer, job: RunningJob) -> None:
    (server.home / f"go.{job.id}").touch()


@contextmanager
def renamed(folder: Path) -> Iterator[None]:
    aside = folder.rename(folder.with_name(f"{folder.name}.gone"))
    try:
        yield
    finally:
        if folder.exists():
            folder.rmdir()
        aside.rename(folder)


@contextmanager
def emptied(folder: Path) -> Iterator[None]:
    """Another folder in its place, as an empty disk is that somebody mounts."""
    with renamed(folder):
        folder.mkdir(mode=0o700)
        yield


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    folder.chmod(0)
    try:
        yield
    finally:
        folder.chmod(0o700)


WAYS: dict[str, Away] = {
    "an empty disk over the home": lambda server: small_disk(server.home, "size=1m"),
    "an empty disk over the jobs": lambda server: small_disk(server.home / "project" / ".jobs", "size=1m"),
    "the home renamed": lambda server: renamed(server.home),
    "the project renamed": lambda server: renamed(server.home / "project"),
    "our folder renamed": lambda server: renamed(server.home / "project" / ".remote-scripts"),
    "our folder closed": lambda server: closed(server.home / "project" / ".remote-scripts"),
    "the jobs renamed": lambda server: renamed(server.home / "project" / ".jobs"),
    "the jobs emptied": lambda server: emptied(server.home / "project" / ".jobs"),
    "the jobs closed": lambda server: closed(server.home / "project" / ".jobs"),
}


@pytest.mark.slow
@pytest.mark.row(131)
@pytest.mark.parametrize("way", WAYS)
def test_a_job_whose_folders_are_away_for_a_moment_is_unreachable_and_then_what_it_is(
    desk: Workspace, server: TestServer, way: str
) -> None:
    if "closed" in way and os.geteuid() == 0:
        pytest.skip("root may read everything")
    job = begin_and_run(desk, server, UNTIL_TOLD)
    with WAYS[way](server):
        listed = remote_tool("job-list", "--rsync", "--json", cwd=desk.root)
        (told,) = json.loads(listed.stdout)["jobs"]
        assert told["state"] == "unreachable", listed
        assert told["reason"].startswith("last seen running"), listed
        assert desk.list_jobs(by_id(job.id)).jobs[0].state is JobState.UNREACHABLE
    (listed_again,) = desk.pull_logs(by_id(job.id)).jobs
    assert (listed_again.state, listed_again.reason) == (JobState.RUNNING, "")
    let_end(server, job)
    assert job.wait(300) is JobState.FAILED
    assert job.job.exit_code == 7
    desk.pull_logs(by_id(job.id))
    assert log_of(desk, job.id) == b"begun\ndone\n"


@pytest.mark.slow
@pytest.mark.row(131)
@pytest.mark.parametrize("way", ["the project renamed", "our folder renamed", "the jobs emptied"])
def test_a_follower_waits_while_the_jobs_folders_are_away(
    desk: Workspace, server: TestServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link goes too, so that the follower has to ask anew."""
    monkeypatch.setattr(follow, "LONGEST_PAUSE", 0.3)
    job = begin_and_run(desk, server, UNTIL_TOLD)
    told: list[object] = []
    watching = Workspace(desk.config, Hooks(told.append))
    shown: list[bytes] = []
    answers: list[Any] = []
    following = threading.Thread(
        target=lambda: answers.append(watching.follow_jobs(by_id(job.id), lambda chunk: shown.append(chunk.data)))
    )
    following.start()
    until(lambda: shown)
    with WAYS[way](server):
        server.drop_connections()
        until(lambda: any("trying again" in str(each) and "connection" not in str(each) for each in told))
    let_end(server, job)
    following.join(60)
    assert not following.is_alive()
    assert b"".join(shown) == b"begun\ndone\n"
    assert [(each.state, each.exit_code) for each in answers[0].jobs] == [(JobState.FAILED, 7)]


@pytest.mark.row(131)
def test_a_loss_needs_the_folder_that_the_job_was_in_and_is_taken_back_when_it_is_found(
    desk: Workspace, server: TestServer
) -> None:
    job = begin_and_run(desk, server, UNTIL_TOLD)
    log = desk.config.local.jobs
    with renamed(remote_folder(server, job.id)):
        (gone,) = desk.pull_logs(by_id(job.id)).jobs
        assert gone.state is JobState.LOST
        assert gone.reason.startswith("its folder is gone from the server; ")
        assert desk.wait_jobs(by_id(job.id), timeout=300).program_exit_code == 1
        # Nothing more comes of it, so it is not asked for at every look.
        assert Registry(log).find([job.id])[job.id].logs_complete
        assert desk.pull_logs(by_id(job.id)).exit_code == 0
        assert Registry(log).find([job.id])[job.id].logs_complete
    (found,) = desk.list_jobs().jobs
    assert (found.id, found.state, found.reason, found.logs_complete) == (job.id, JobState.RUNNING, "", False)
    let_end(server, job)
    assert job.wait(300) is JobState.FAILED
    desk.pull_logs(by_id(job.id))
    assert log_of(desk, job.id) == b"begun\ndone\n"
    assert job.id in (registry := desk._registry).ended, registry.ended


@pytest.mark.row(131)
def test_an_end_that_is_found_after_a_loss_is_the_end(desk: Workspace, server: TestServer) -> None:
    job = begin_and_run(desk, server, UNTIL_TOLD)
    with renamed(remote_folder(server, job.id)):
        assert desk.pull_logs(by_id(job.id)).jobs[0].state is JobState.LOST
        let_end(server, job)
        # The supervisor records the end after the last of them has ended.
        until((remote_folder(server, f"{job.id}.gone") / "ended.json").exists)
    desk.pull_logs()
    (known,) = desk.select_local(by_id(job.id))
    assert (known.state, known.exit_code, known.logs_complete) == (JobState.FAILED, 7, True)
    assert log_of(desk, job.id) == b"begun\ndone\n"


@pytest.mark.row(131)
def test_a_record_of_an_older_version_learns_which_folder_its_job_is_in(desk: Workspace, server: TestServer) -> None:
    job = begin_and_run(desk, server, UNTIL_TOLD)
    record = desk.config.local.job(job.id) / "job.yaml"
    folder_id = job.job.folder_id
    assert folder_id == (server.home / "project" / ".jobs" / ".folder-id").read_text().strip()
    lines = record.read_text().splitlines(keepends=True)
    older = "".join(line for line in lines if not line.startswith(("folder_id", "processes_left")))
    record.write_text(older)
    with renamed(remote_folder(server, job.id)):
        (unknown,) = desk.list_jobs().jobs
        assert (unknown.state, unknown.reason) == (
            JobState.UNREACHABLE,
            "last seen running; its server does not know it",
        )
    assert desk.list_jobs().jobs[0].folder_id == folder_id
    with renamed(remote_folder(server, job.id)):
        assert desk.list_jobs(by_id(job.id)).jobs[0].state is JobState.LOST
    desk.stop_jobs(by_id(job.id))


@pytest.mark.row(131)
def test_files_of_an_ended_job_that_are_away_for_a_moment_come_later(desk: Workspace, server: TestServer) -> None:
    job = desk.start("first", "sleep 0.1; echo 7 > model.pt", sync=False, artifacts=["*.pt"])
    assert job.wait(300) is JobState.SUCCEEDED
    shutil.rmtree(desk.config.local.job(job.id) / "artifacts")
    desk._registry.revise([(job.id, lambda known: replace(known, artifacts_complete=False))])
    jobs = server.home / "project" / ".jobs"
    with emptied(jobs):
        (jobs / ".folder-id").write_text("a" * 32)
        desk.pull_logs(by_id(job.id))
        assert not desk.select_local(by_id(job.id))[0].artifacts_complete
        (jobs / ".folder-id").unlink()
    assert [path.read_text() for path in job.pull()] == ["7\n"]
    with renamed(remote_folder(server, job.id)):
        desk.pull_logs(by_id(job.id))
        assert desk.select_local(by_id(job.id))[0].artifacts_complete


@pytest.mark.row(131)
def test_what_one_laptop_calls_lost_with_evidence_another_one_can_judge_too(
    desk: Workspace, server: TestServer, tmp_path: Path
) -> None:
    other = Workspace.find(make_project(tmp_path / "other", [server]))
    job = begin_and_run(desk, server, UNTIL_TOLD)
    assert other.list_jobs().jobs[0].id == job.id
    with emptied(server.home / "project" / ".jobs"):
        assert other.list_jobs().jobs[0].state is JobState.UNREACHABLE
    with renamed(remote_folder(server, job.id)):
        assert other.list_jobs(by_id(job.id)).jobs[0].state is JobState.LOST
    assert other.list_jobs().jobs[0].state is JobState.RUNNING
    other.stop_jobs(by_id(job.id))
    assert job.state is JobState.KILLED


@pytest.mark.row(132)
@pytest.mark.parametrize("known", [True, False], ids=["tagged", "of another laptop"])
def test_a_lost_job_with_living_processes_is_listed_and_stopped_by_its_tag(
    desk: Workspace, server: TestServer, tmp_path: Path, *, known: bool
) -> None:
    other = Workspace.find(make_project(tmp_path / "other", [server]))
    job = begin(desk, "first", "sleep 1000", tags=["sweep"])
    asking = desk if known else other
    record = json.loads((remote_folder(server, job.id) / "started.json").read_text())
    os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: asking.list_jobs().jobs[0].state is JobState.LOST)
    listed = remote_tool("job-list", cwd=asking.root).stdout
    assert re.search(r"lost .* the supervisor is gone; [1-9] process(es)? remains? ", listed), listed
    assert asking.wait_jobs(JobSelection(), timeout=10).jobs == ()
    asking.stop_jobs(JobSelection(tags=("sweep",)))
    assert processes_of(job.id) == []
    assert asking.select_local(by_id(job.id))[0].state is JobState.KILLED
    assert not asking.list_jobs().jobs
    assert job.state is JobState.KILLED


@pytest.mark.row(132)
def test_a_job_whose_folder_was_removed_while_it_runs_is_listed_for_as_long_as_it_runs(
    desk: Workspace, server: TestServer
) -> None:
    job = begin_and_run(desk, server, "sleep 1000")
    with renamed(remote_folder(server, job.id)):
        for _ in range(2):
            (listed,) = desk.pull_logs(JobSelection()).jobs
            assert listed.state is JobState.LOST
            assert re.fullmatch("its folder is gone from the server; [1-9] process(es)? remains?", listed.reason)
        pids = processes_of(job.id)
        record = json.loads((remote_folder(server, f"{job.id}.gone") / "started.json").read_text())
        for pid in (record["supervisor"]["pid"], *pids):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not processes_of(job.id))
        assert not desk.list_jobs().jobs
        assert desk.select_local(by_id(job.id))[0].reason == "its folder is gone from the server"


@pytest.mark.row(132)
def test_the_api_stops_what_is_left_of_a_lost_job(desk: Workspace, server: TestServer) -> None:
    job = begin(desk, "first", "sleep 1000")
    record = json.loads((remote_folder(server, job.id) / "started.json").read_text())
    os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: job.state is JobState.LOST)
    assert job.kill() is JobState.KILLED
    assert processes_of(job.id) == []


@pytest.mark.row(132)
def test_a_lost_job_of_which_nothing_is_left_is_not_among_those_that_run(desk: Workspace, server: TestServer) -> None:
    job = begin(desk, "first", "sleep 1000")
    record = json.loads((remote_folder(server, job.id) / "started.json").read_text())
    for pid in (record["supervisor"]["pid"], *processes_of(job.id)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(job.id))
    assert desk.list_jobs(by_id(job.id)).jobs[0].state is JobState.LOST
    assert not desk.list_jobs().jobs
    assert [each.id for each in desk.list_jobs(JobSelection(running=False, stopped=True)).jobs] == [job.id]


DAMAGES: dict[str, tuple[str, dict[str, object], str]] = {
    "a newer version": ("spec.json", {"schema": 2}, "spec.json: schema must be 1, found 2; a newer remote-tool"),
    "a refused field": ("spec.json", {"server": "x" * 300}, "server: must be a text of at most 256 characters"),
    "a damaged start": ("started.json", {"pid": "x"}, "started.json: pid cannot be 'x'"),
}


@pytest.mark.row(133)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_job_that_we_cannot_read_is_unreachable_and_hinders_no_other(
    desk: Workspace, server: TestServer, damage: str
) -> None:
    name, values, why = DAMAGES[damage]
    job, neighbour = begin_and_run(desk, server, UNTIL_TOLD), begin_and_run(desk, server, UNTIL_TOLD)
    record = remote_folder(server, job.id) / name
    text = record.read_text()
    record.write_text(json.dumps(json.loads(text) | values))
    answer = desk.pull_logs(by_id(job.id))
    assert answer.jobs[0].state is JobState.UNREACHABLE
    assert answer.jobs[0].reason.startswith(f"last seen running; {why}")
    assert not answer.jobs[0].logs_complete
    assert why in str(answer.errors["first"])
    let_end(server, job)
    until((record.parent / "ended.json").exists)
    followed = desk.follow_jobs(by_id(job.id, neighbour.id), lambda _: let_end(server, neighbour))
    assert [each.state for each in followed.jobs] == [JobState.UNREACHABLE, JobState.FAILED]
    assert why in str(followed.errors["first"])
    assert not Registry(desk.config.local.jobs).find([job.id])[job.id].logs_complete
    record.write_text(text)
    assert desk.pull_logs(by_id(job.id)).jobs[0].state is JobState.FAILED
    assert log_of(desk, job.id) == b"begun\ndone\n"


@pytest.mark.row(134)
def test_a_start_that_is_delayed_while_another_terminal_lists_is_not_called_failed(
    desk: Workspace, server: TestServer
) -> None:
    registry = Registry(desk.config.local.jobs)
    spec = JobSpec(new_job_id(), "first", "exit 5")
    begin(desk, "first", "true").wait(300)
    registry.create([spec])
    # As a minute later.
    registry.revise([(spec.id, lambda known: replace(known, created_at=known.created_at - 100))])
    listed = desk.pull_logs(by_id(spec.id))
    assert (listed.jobs[0].state, listed.errors) == (JobState.STARTING, {})
    with renamed(server.home / "project" / ".remote-scripts"):
        assert desk.list_jobs().jobs[0].state is JobState.UNREACHABLE
    with pytest.raises(JobError, match="Still running"):
        desk.wait_jobs(by_id(spec.id), timeout=2)
    asyncio.run(start_again(desk, spec))
    assert desk.wait_jobs(by_id(spec.id), timeout=300).jobs[0].exit_code == 5


@pytest.mark.row(134)
def test_a_start_that_is_stopped_before_it_arrives_is_ended_when_it_does(desk: Workspace) -> None:
    begin(desk, "first", "true").wait(300)
    spec = JobSpec(new_job_id(), "first", "sleep 1000")
    desk._registry.create([spec])
    assert "there is no such job" in str(desk.stop_jobs(by_id(spec.id)).errors["first"])
    assert desk.select_local(by_id(spec.id))[0].state is JobState.STARTING
    asyncio.run(start_again(desk, spec))
    assert desk.list_jobs(by_id(spec.id)).jobs[0].state is JobState.KILLED
    assert processes_of(spec.id) == []


async def start_again(desk: Workspace, spec: JobSpec) -> None:
    async with HostPool(desk.config) as pool:
        await start_specs(Context(desk.config, pool, desk._registry, ignore), [spec])


@pytest.mark.row(131)
def test_a_stop_that_an_unprepared_server_does_not_take_is_made_up_for(desk: Workspace, server: TestServer) -> None:
    job = begin_and_run(desk, server, "sleep 1000", tags=["mine"])
    with renamed(server.home / "project"):
        answer = desk.stop_jobs(JobSelection(tags=("mine",)))
        assert "first is not prepared" in str(answer.errors["first"])
        assert answer.jobs[0].state is JobState.UNREACHABLE
    assert desk.list_jobs(by_id(job.id)).jobs[0].state is JobState.KILLED
    assert processes_of(job.id) == []


# Those that mean something to us, those of shells and signals, and those next to them.
STATUSES = (0, 1, 2, 3, 4, 95, 96, 97, 98, 99, 126, 127, 128, 129, 130, 137, 139, 143, 254, 255)


@pytest.mark.slow
@pytest.mark.row(131)
def test_no_exit_status_of_the_control_script_ends_a_job_that_runs(desk: Workspace, server: TestServer) -> None:
    job, doomed = begin_and_run(desk, server, UNTIL_TOLD), begin(desk, "first", "sleep 1000")
    selection = by_id(job.id)
    commands: dict[str, Callable[[], Any]] = {
        "job-list": desk.list_jobs,
        "job-rsync": lambda: desk.pull_logs(selection),
        "job-tail": lambda: desk.follow_jobs(selection, lambda _: None, FollowOptions(wait=False)),
        "job-tail that began before": lambda: asyncio.run(follow_on(desk, job, logs=True)),
        "job-wait": lambda: desk.wait_jobs(selection, timeout=5),
        "job-wait that began before": lambda: asyncio.run(follow_on(desk, job, logs=False)),
        "job-pull": lambda: desk.pull_jobs(selection, ["*.pt"]),
        "job-kill": lambda: desk.stop_jobs(by_id(doomed.id)),
    }
    python = server.home / "project" / ".remote-scripts" / "python"
    aside = python.rename(python.with_name("python.aside"))
    try:
        for status in STATUSES:
            python.write_text(f"#!/bin/sh\nexit {status}\n")
            python.chmod(0o700)
            for command, work in commands.items():
                with pytest.raises(RemoteToolError):
                    raise next(iter(work().errors.values()))
                known = desk._registry.find([job.id, doomed.id]).values()
                assert all(each.state is JobState.RUNNING and not each.logs_complete for each in known), (
                    status,
                    command,
                )
                record_case("exit statuses of the control script, against a job that runs")
    finally:
        aside.rename(python)
    let_end(server, job)
    assert (job.wait(300), job.job.exit_code) == (JobState.FAILED, 7)
    assert doomed.state is JobState.KILLED


async def follow_on(desk: Workspace, job: RunningJob, *, logs: bool) -> None:
    """Follow a job of which nobody asks first how it is."""
    async with HostPool(desk.config) as pool:
        context = Context(desk.config, pool, desk._registry, ignore)
        await follow_server(context, [job.job], LogListener(), logs=logs, give_up_after=0.0)
