"""Jobs on real servers: started once, followed to the last byte, ended truly, stopped whole."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState, LaunchRequest, RunningJob, Workspace
from remote_tool.errors import ConnectError, JobError, UsageError
from remote_tool.jobs.job import JobSpec, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import Notice, ignore
from remote_tool.workflows.fan_out.request import FanOutRequest
from remote_tool.workflows.jobs.follow import Chunk, FollowAnswer, FollowOptions
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start import StartRequest
from remote_tool.workflows.start.start_specs import start_specs
from remote_tool.workspace import Hooks
from tests.below import contents_below
from tests.extended.sweeps.injection import can_trace
from tests.figures import record_figure
from tests.processes import processes_of
from tests.project import make_project, write_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

EXIT_CODES = (0, 1, 2, 126, 127, 128, 137, 255)


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait for what must come true; fail when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def begin(
    workspace: Workspace, server: str, command: str, env: dict[str, str] | None = None, tags: Sequence[str] = ()
) -> RunningJob:
    """Start a job that needs no file of the project to be sent first."""
    return workspace.start(server, command, env, tags, sync=False)


def begin_and_run(workspace: Workspace, server: TestServer, command: str, tags: Sequence[str] = ()) -> RunningJob:
    """Start a job that says ``begun``, and wait for that: until then, its shell needs the job's folder."""
    job = begin(workspace, server.name, f"echo begun; {command}", tags=tags)
    until((remote_folder(server, job.id) / "job.out").read_bytes)
    return job


def by_id(*job_ids: str) -> JobSelection:
    return JobSelection(jobs=job_ids, stopped=True)


def log_of(workspace: Workspace, job_id: str, stream: str = "out") -> bytes:
    return (workspace.config.local.job(job_id) / f"job.{stream}").read_bytes()


def remote_folder(server: TestServer, job_id: str) -> Path:
    return server.home / "project" / ".jobs" / job_id


@pytest.mark.row(6)
def test_exit_codes_come_home_exactly(workspace: Workspace) -> None:
    jobs = [begin(workspace, "first", f"exit {code}") for code in EXIT_CODES]
    answer = workspace.wait_jobs(by_id(*(job.id for job in jobs)), timeout=300)
    assert {job.id: job.exit_code for job in answer.jobs} == dict(
        zip((job.id for job in jobs), EXIT_CODES, strict=True)
    )
    assert [job.state for job in answer.jobs] == [JobState.SUCCEEDED] + [JobState.FAILED] * 7


@pytest.mark.row(171)
def test_the_answer_to_a_start_says_one_thing_of_each_job(workspace: Workspace) -> None:
    requests = [StartRequest(f"exit {number % 2}", ("first",), sync=False) for number in range(30)]
    jobs = workspace.start_jobs(*requests).jobs
    told = {(job.state.is_finished, job.exit_code is None, job.ended_at is None) for job in jobs}
    assert told <= {(False, True, True), (True, False, False)}
    ended = workspace.wait_jobs(JobSelection(jobs=tuple(job.id for job in jobs), stopped=True)).jobs
    assert [job.exit_code for job in ended] == [number % 2 for number in range(30)]


def test_every_request_takes_its_variables_as_env(workspace: Workspace) -> None:
    asked = StartRequest("echo $A$B$C", ("first",), environment={"A": "1", "B": "x"}, env={"B": "2"}, sync=False)
    (job,) = workspace.start_jobs(asked, env={"C": "3"}).jobs
    assert list(RunningJob(workspace, job).tail()) == ["123"]
    parts = FanOutRequest("echo $A-{count}", ("first",), total=1, env={"A": "x"}, sync=False)
    (job,) = workspace.fan_out(parts, env={"A": "y"}).jobs
    assert list(RunningJob(workspace, job).tail()) == ["y-1"]
    launch = LaunchRequest("x.py", env={"A": "1"})
    assert dict(replace(launch, env={"B": "2"}).environment) == {"A": "1", "B": "2"}


@pytest.mark.row(7)
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM"])
def test_a_signal_is_told_apart_from_its_exit_code(workspace: Workspace, name: str) -> None:
    job = begin(workspace, "second", f"kill -{name.removeprefix('SIG')} $$")
    assert job.wait(300) is JobState.FAILED
    assert (job.job.signal, job.job.exit_code) == (name, None)
    assert job.job.program_exit_code == 128 + signal.Signals[name]


@pytest.mark.row(27)
def test_the_bytes_of_a_log_come_home_as_they_were(workspace: Workspace) -> None:
    payload = bytes(range(256)) * 500
    job = begin(
        workspace, "first", "python -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 500)'; echo e >&2"
    )
    shown: list[Chunk] = []
    answer = workspace.follow_jobs(by_id(job.id), shown.append)
    assert answer.exit_code == 0
    assert b"".join(chunk.data for chunk in shown if chunk.stream == "out") == payload
    assert log_of(workspace, job.id) == payload
    assert log_of(workspace, job.id, "err") == b"e\n"


def test_the_last_lines_are_shown_and_the_rest_is_kept(workspace: Workspace) -> None:
    job = begin(workspace, "first", "seq 1 5000")
    job.wait(300)
    shown: list[Chunk] = []
    workspace.follow_jobs(by_id(job.id), shown.append, FollowOptions(lines=3, wait=False))
    assert b"".join(chunk.data for chunk in shown) == b"4998\n4999\n5000\n"
    assert log_of(workspace, job.id).count(b"\n") == 5000


def test_what_a_job_wrote_is_brought_home_also_after_somebody_only_waited_for_its_end(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    job = begin(workspace, "first", "until test -e $REMOTE_TOOL_JOB_ID.go; do sleep 0.1; done; echo written")
    assert job.state is JobState.RUNNING
    (shared_servers[0].home / "project" / f"{job.id}.go").touch()
    assert job.wait(300) is JobState.SUCCEEDED
    workspace.pull_logs(by_id(job.id))
    assert log_of(workspace, job.id) == b"written\n"
    assert list(job.tail()) == ["written"]


@pytest.mark.row(1)
def test_killing_ends_processes_that_left_the_session_and_the_environment(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    escapes = "setsid sleep 1000 & env -i /bin/sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &)"
    command = f"{escapes}; trap '' TERM; wait; sleep 1000"
    job = begin(workspace, "first", command)
    until(lambda: len(processes_of(job.id)) >= 4)
    assert job.kill(grace=0.5) is JobState.KILLED
    assert processes_of(job.id) == []
    assert (remote_folder(shared_servers[0], job.id) / "ended.json").exists()


@pytest.mark.row(23)
def test_a_checkpoint_can_be_written_before_the_end(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    on_term = "trap 'sleep 1; echo saved > saved.txt; exit 0' TERM"
    job = begin(workspace, "first", f"{on_term}; echo up; while :; do sleep 0.1; done")
    until((remote_folder(shared_servers[0], job.id) / "job.out").read_bytes)
    assert job.kill() is JobState.KILLED
    assert (shared_servers[0].home / "project" / "saved.txt").read_text() == "saved\n"


@pytest.mark.row(20)
def test_killing_one_job_leaves_its_neighbour_alone(workspace: Workspace) -> None:
    victim, neighbour = (begin(workspace, "first", "sleep 1000") for _ in range(2))
    victim.kill()
    assert neighbour.state is JobState.RUNNING
    neighbour.kill()


@pytest.mark.row(21)
def test_killing_twice_and_killing_what_ended_changes_nothing(workspace: Workspace) -> None:
    job = begin(workspace, "first", "exit 3")
    job.wait(300)
    answer = workspace.stop_jobs(by_id(job.id))
    assert (answer.jobs[0].state, answer.jobs[0].exit_code, answer.errors) == (JobState.FAILED, 3, {})


@pytest.mark.row(127)
def test_nothing_is_killed_without_a_selection(workspace: Workspace) -> None:
    job = begin(workspace, "first", "sleep 1000")
    with pytest.raises(UsageError, match="No job is selected"):
        workspace.stop_jobs(JobSelection())
    with pytest.raises(UsageError, match="No running job"):
        workspace.stop_jobs(JobSelection(tags=("no-such-tag",)))
    assert job.state is JobState.RUNNING
    job.kill()


@pytest.mark.row(9)
def test_one_id_is_started_once_however_often_it_is_asked_for(workspace: Workspace) -> None:
    spec = JobSpec(new_job_id(), "first", "echo started >> once.txt; sleep 1000")

    async def start_twice() -> None:
        async with HostPool(workspace.config) as pool:
            context = Context(workspace.config, pool, Registry(workspace.config.local.jobs), ignore)
            await asyncio.gather(*(start_specs(context, [spec]) for _ in range(5)))

    asyncio.run(start_twice())
    answer = workspace.list_jobs(by_id(spec.id))
    assert [job.state for job in answer.jobs] == [JobState.RUNNING]
    workspace.run("grep -c started once.txt", ["first"])
    output: list[bytes] = []
    workspace.run("cat once.txt", ["first"], on_output=lambda _server, _stream, data: output.append(data))
    assert b"".join(output) == b"started\n"
    workspace.stop_jobs(by_id(spec.id))


@pytest.mark.row(14)
def test_a_job_outlives_the_connection_that_started_it(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    job = begin(workspace, "second", "sleep 1000")
    shared_servers[1].drop_connections()
    assert job.state is JobState.RUNNING
    job.kill()


def test_following_survives_dropped_connections_without_losing_or_repeating_a_byte(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    job = begin(workspace, "second", "for i in $(seq 1 400); do echo line $i; sleep 0.01; done")
    shown: list[bytes] = []
    enough = threading.Event()

    def show(chunk: Chunk) -> None:
        shown.append(chunk.data)
        enough.set()

    def cut() -> None:
        for _ in range(2):
            enough.wait(20)
            shared_servers[1].drop_connections()
            enough.clear()

    cutter = threading.Thread(target=cut)
    cutter.start()
    answer = workspace.follow_jobs(by_id(job.id), show)
    enough.set()
    cutter.join()
    expected = b"".join(b"line %d\n" % number for number in range(1, 401))
    assert answer.exit_code == 0
    assert b"".join(shown) == expected
    assert log_of(workspace, job.id) == expected


def test_a_second_laptop_sees_and_stops_the_same_jobs(workspace: Workspace, tmp_path: Path) -> None:
    job = begin(workspace, "first", "sleep 1000", tags=["from-first-laptop"])
    other_root = tmp_path / "project"
    (other_root / ".remote").mkdir(parents=True)
    (other_root / ".remote" / "configs.yaml").write_bytes(workspace.config.local.config_file.read_bytes())
    other = Workspace.find(other_root)
    seen = {each.id: each for each in other.list_jobs().jobs}
    assert seen[job.id].tags == ("from-first-laptop",)
    assert seen[job.id].command == "sleep 1000"
    other.stop_jobs(by_id(job.id))
    assert job.state is JobState.KILLED


def test_an_older_job_that_is_found_later_is_not_taken_for_the_newest(workspace: Workspace, tmp_path: Path) -> None:
    begin(workspace, "first", "echo old", tags=["two-laptops"]).wait(300)
    other_root = tmp_path / "project"
    (other_root / ".remote").mkdir(parents=True)
    (other_root / ".remote" / "configs.yaml").write_bytes(workspace.config.local.config_file.read_bytes())
    other = Workspace.find(other_root)
    new = begin(other, "first", "echo new", tags=["two-laptops"])
    new.wait(300)
    tagged = JobSelection(tags=("two-laptops",), stopped=True)
    assert [job.key > new.job.key for job in other.list_jobs(tagged).jobs] == [False, True]
    assert [job.id for job in other.follow_jobs(tagged, lambda _chunk: None).jobs] == [new.id]


@pytest.mark.row(126)
def test_a_job_of_a_server_that_is_no_longer_configured_is_listed_and_a_stop_says_why_not(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_bytes(workspace.config.local.config_file.read_bytes())
    mine = Workspace.find(tmp_path)
    registry = Registry(mine.config.local.jobs)
    (job,) = registry.create([JobSpec(new_job_id(), "removed", "sleep 1000")])
    registry.update([replace(job, state=JobState.RUNNING)])
    assert [each.id for each in mine.list_jobs().jobs if each.server == "removed"] == [job.id]
    answer = mine.stop_jobs(by_id(job.id))
    assert str(answer.errors["removed"]) == ("removed is no longer in the configuration, so its jobs cannot be stopped")


@pytest.mark.row(3)
def test_a_job_that_its_server_cannot_read_just_now_is_not_lost(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    """As with a network disk that does not answer, or too many open files."""
    if not can_trace():
        pytest.skip("strace may not look at processes here")
    job = begin(workspace, "first", "sleep 1000")
    python = shared_servers[0].home / "project" / ".remote-scripts" / "python"
    aside = python.rename(python.with_name("python.aside"))
    try:
        faulty = f"-o /dev/null -e trace=openat -e inject=openat:error=EIO -P {job.id}"
        python.write_text(f'#!/bin/sh\nexec strace {faulty} {aside} "$@"\n')
        python.chmod(0o700)
        (seen,) = workspace.list_jobs(by_id(job.id)).jobs
        assert (seen.state, seen.reason) == (JobState.UNREACHABLE, "last seen running; Input/output error")
        with_logs = workspace.pull_logs(by_id(job.id))
        assert "Input/output error" in str(with_logs.errors["first"])
        assert with_logs.jobs[0].state is JobState.UNREACHABLE
    finally:
        aside.rename(python)
    assert workspace.list_jobs(by_id(job.id)).jobs[0].state is JobState.RUNNING
    workspace.stop_jobs(by_id(job.id))


def test_more_jobs_than_one_answer_holds_are_listed(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    job = begin(workspace, "first", "true")
    job.wait(300)
    model = remote_folder(shared_servers[0], job.id)
    # As thousands of small ones would.
    large = json.dumps(["x" * 1000] * 100)
    copies = [model.with_name(new_job_id()) for _ in range(90)]
    try:
        for copy in copies:
            copy.mkdir()
            for name in ("spec.json", "started.json", "ended.json"):
                text = (model / name).read_text().replace(job.id, copy.name)
                (copy / name).write_text(text.replace('"tags": []', f'"tags": {large}'))
        (tmp_path / ".remote").mkdir()
        (tmp_path / ".remote" / "configs.yaml").write_bytes(workspace.config.local.config_file.read_bytes())
        answer = Workspace.find(tmp_path).list_jobs(JobSelection(stopped=True))
        assert not answer.errors
        assert {copy.name for copy in copies} <= {each.id for each in answer.jobs}
    finally:
        for copy in copies:
            shutil.rmtree(copy)


@pytest.mark.row(3)
def test_a_killed_supervisor_makes_a_lost_job_that_can_still_be_stopped(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    job = begin(workspace, "first", "sleep 1000")
    record = json.loads((remote_folder(shared_servers[0], job.id) / "started.json").read_text())
    os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: workspace.list_jobs(by_id(job.id)).jobs[0].state is JobState.LOST)
    assert processes_of(job.id)
    workspace.stop_jobs(by_id(job.id))
    assert processes_of(job.id) == []


@pytest.mark.row(125)
def test_a_server_that_cannot_be_reached_shows_the_last_state_with_its_age(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server("away")
    workspace = Workspace.find(make_project(tmp_path / "project", [server]))
    workspace.prepare()
    job = begin(workspace, "away", "sleep 1000")
    server.stop()
    answer = workspace.list_jobs()
    assert answer.jobs[0].state is JobState.UNREACHABLE
    assert answer.jobs[0].reason.startswith("last seen running, ")
    assert answer.exit_code == 4
    with pytest.raises(ConnectError, match="away"):
        list(job.tail())
    for signal_name, grace in (("SIGTERM", math.inf), ("SIGTERM", 1e11), ("SIGTERM", -1), ("TERM", None)):
        with pytest.raises(UsageError, match=r"^(--grace must be from 0 to 604800 seconds|Unknown signal)"):
            job.kill(signal_name, grace)
    assert workspace.list_jobs().jobs == answer.jobs
    server.start()
    write_configuration(tmp_path / "project", [server])
    Workspace.find(tmp_path / "project").stop_jobs(by_id(job.id))
    assert processes_of(job.id) == []


def test_a_following_that_lost_one_of_two_servers_says_some_failed(workspace: Workspace) -> None:
    job = begin(workspace, "first", "true").job
    away = ConnectError("away does not answer", server="away")
    assert FollowAnswer((job,), {"away": away}).exit_code == 3
    assert FollowAnswer((job,), {"first": away}).exit_code == 4


@pytest.mark.row(104)
def test_stops_of_earlier_are_made_up_for_with_one_question_and_one_that_fails_is_no_success(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    notices: list[object] = []
    asked: list[str] = []
    desk = Workspace(workspace.config, Hooks(notices.append, trace=lambda *told: asked.append(told[1])))
    jobs = [begin(desk, "first", "sleep 1000") for _ in range(3)]
    registry = Registry(desk.config.local.jobs)
    (unknown,) = registry.create([JobSpec(new_job_id(), "first", "sleep 1000")])
    # It ends without anybody here knowing.
    alone = begin(desk, "first", "exit 3")
    record = shared_servers[0].home / "project" / ".jobs" / alone.id / "ended.json"
    while not record.exists():
        time.sleep(0.01)
    missing = replace(unknown, state=JobState.RUNNING, folder_id=jobs[0].job.folder_id)
    records = [*(job.job for job in jobs), missing, alone.job]
    registry.update(replace(job, stop_signal="SIGTERM", stop_grace=5.0) for job in records)
    asked.clear()
    listed = desk.list_jobs(by_id(*(job.id for job in records))).jobs
    assert sorted(job.state for job in listed) == [JobState.FAILED, *[JobState.KILLED] * 3, JobState.LOST]
    assert len([label for label in asked if "stop" in label]) == 1, asked
    ours = {str(job.key) for job in records}
    told = [notice.text for notice in notices if isinstance(notice, Notice)]
    assert [text for text in told if text.split()[1].rstrip(":") in ours] == [
        *(f"job {job.job.key} has now been stopped, as requested while the server was unreachable" for job in jobs),
        (
            f"job {unknown.key}: there is no such job on this server. If hostname: of first has changed in "
            f".remote/configs.yaml, set it back; remote-tool clean --job {unknown.key} forgets the job"
        ),
        f"job {alone.job.key} ended (failed) before it could be stopped, as requested while the server was unreachable",
    ]


@pytest.mark.row(111)
def test_variables_reach_the_job_and_are_written_nowhere(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer]
) -> None:
    secret = "canary-" + new_job_id()
    job = begin(workspace, "first", f'test "${{#TOKEN}}" = {len(secret)} && echo found', env={"TOKEN": secret})
    job.wait(300)
    assert list(job.tail()) == ["found"]
    for path, content in contents_below(workspace.root, shared_servers[0].home):
        assert secret.encode() not in content, path


def test_a_job_has_the_environment_that_it_was_promised(workspace: Workspace) -> None:
    job = begin(
        workspace,
        "second",
        'echo "$REMOTE_TOOL_SERVER $PYTHONUNBUFFERED $RANK"; pwd; command -v python; echo $REMOTE_TOOL_JOB_ID',
    )
    server, folder, python, job_id = job.tail()
    assert server == "second 1 "
    assert folder.endswith("/home/project")
    assert python.endswith("/bin/python")
    assert job_id == job.id


def test_waiting_too_long_names_the_job(workspace: Workspace) -> None:
    job = begin(workspace, "first", "sleep 1000")
    with pytest.raises(JobError, match=f"Still running after 1 s: job {job.job.key}"):
        job.wait(1)
    job.kill()


def test_a_start_on_several_servers_gives_each_its_own_job(workspace: Workspace) -> None:
    answer = workspace.start_jobs(StartRequest("echo on $REMOTE_TOOL_SERVER", tags=("both",)))
    assert [job.server for job in answer.jobs] == ["first", "second"]
    workspace.wait_jobs(by_id(*(job.id for job in answer.jobs)), timeout=300)
    workspace.list_jobs(by_id(*(job.id for job in answer.jobs)), logs=True)
    assert [log_of(workspace, job.id) for job in answer.jobs] == [b"on first\n", b"on second\n"]


def test_many_jobs_start_with_one_question_per_server(workspace: Workspace) -> None:
    """Each server is logged in to once, asked once, and gets its jobs in the order of the requests."""
    traced: list[tuple[str, str]] = []
    hooks = Hooks(trace=lambda server, what, _seconds: traced.append((server, what)))
    requests = [
        *(StartRequest("echo $N", environment={"N": str(number)}, tags=("many",)) for number in range(4)),
        StartRequest("echo alone", servers=("second",), sync=False),
    ]
    answer = Workspace(workspace.config, hooks).start_jobs(*requests)
    assert [job.server for job in answer.jobs] == ["first", "second"] * 4 + ["second"]
    selection = by_id(*(job.id for job in answer.jobs))
    workspace.wait_jobs(selection, timeout=300)
    workspace.list_jobs(selection, logs=True)
    expected = [b"%d\n" % number for number in range(4) for _ in range(2)]
    assert [log_of(workspace, job.id) for job in answer.jobs] == [*expected, b"alone\n"]
    for label in ("log in to", "supervisor: start"):
        assert sorted(server for server, what in traced if what.startswith(label)) == ["first", "second"], traced


def test_the_older_shape_of_the_api_works(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    from remote_tool.job import JOBS  # noqa: PLC0415 - as its users write it

    job = JOBS.create("first", "echo $K", {"K": "v"}, ["tag"]).start()
    assert list(job.tail()) == ["v"]


def test_a_program_for_the_api_of_labml_remote_finds_jobs_and_servers(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    from remote_tool.job import JOBS  # noqa: PLC0415 - as its users write it
    from remote_tool.server import SERVERS  # noqa: PLC0415 - the same

    assert [(name, SERVERS[name].conf.hostname) for name in SERVERS] == [
        ("first", "127.0.0.1"),
        ("second", "127.0.0.1"),
    ]
    tag = f"sweep-{workspace.root.parent.name}"
    first = JOBS.create("first", "true", {}, [tag, "a"]).start()
    second = JOBS.create(SERVERS["second"].name, "sleep 1000", {}, [tag, "__hidden__"]).start()
    until(lambda: [job.job_id for job in JOBS.filter_running(JOBS.filter_by_tags([tag]))] == [second.job_id])
    ours = JOBS.filter_by_tags([tag])
    assert [(job.job_key, job.server.conf.name, job.running) for job in ours] == [
        (first.job_key, "first", False),
        (second.job_key, "second", True),
    ]
    assert {first.job_id, second.job_id} <= set(JOBS)
    assert JOBS[second.job_id].tags == {tag, "__hidden__"}
    assert JOBS.by_key(first.job_key).has_tags(["a"])
    assert {first.job_key, second.job_key} <= set(JOBS.job_keys())
    assert first.job_id not in {job.job_id for job in JOBS.filter_out_by_tags(["a"])}
    assert second.job_id not in {job.id for job in workspace.list_jobs().jobs}, "it is hidden"
    with pytest.raises(UsageError, match="No job '999999'"):
        JOBS.by_key("999999")
    SERVERS["second"].rsync_jobs()
    second.kill("SIGKILL")


async def test_the_api_works_where_an_event_loop_runs_as_in_a_notebook(workspace: Workspace) -> None:
    assert begin(workspace, "first", "exit 5").wait(300) is JobState.FAILED


@pytest.mark.row(24)
@pytest.mark.slow
def test_many_threads_start_jobs_at_once_and_none_hangs(workspace: Workspace) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda number: begin(workspace, ("first", "second")[number % 2], "echo one"), range(24)))
    answer = workspace.wait_jobs(by_id(*(job.id for job in jobs)), timeout=300)
    assert len({job.key for job in answer.jobs}) == 24
    assert {(job.state, job.exit_code) for job in answer.jobs} == {(JobState.SUCCEEDED, 0)}


@pytest.mark.slow
@pytest.mark.row(153)
def test_a_fan_out_of_more_jobs_than_a_server_lets_us_open_files_begins_whole(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server()
    workspace = Workspace.find(make_project(tmp_path / "project", [server]))
    workspace.prepare()
    (server.home / ".bashrc").write_text("ulimit -Sn 64\n")
    check_fan_out(workspace, server, 80)


@pytest.mark.slow
@pytest.mark.row(153)
def test_1024_jobs_of_one_command_run_and_are_recorded_so(make_server: MakeServer, tmp_path: Path) -> None:
    """Where a process may have 1,024 open files, as usual."""
    server = make_server()
    workspace = Workspace.find(make_project(tmp_path / "project", [server]))
    workspace.prepare()
    (server.home / ".bashrc").write_text("ulimit -Sn 1024\n")
    check_fan_out(workspace, server, 1024)


def check_fan_out(workspace: Workspace, server: TestServer, count: int) -> None:
    """Begin so many jobs by one command, and compare what it says with what runs."""
    began = time.monotonic()
    answer = workspace.fan_out(FanOutRequest("exec sleep 600", per_server=count, sync=False), follow=False, check=False)
    try:
        record_figure(f"{count} jobs of one command: seconds until all run", round(time.monotonic() - began, 1))
        assert dict(answer.errors) == {}
        # A machine that is slow answers before all commands run.
        assert {job.state for job in answer.jobs} <= {JobState.STARTING, JobState.RUNNING}
        ids = by_id(*(job.id for job in answer.jobs))
        until(lambda: Counter(job.state for job in workspace.list_jobs(ids).jobs) == {JobState.RUNNING: count}, 60)
        assert len(list((server.home / "project" / ".jobs").glob("*/started.json"))) == count
    finally:
        # As a power cut: to end so many politely takes much longer.
        for path in (server.home / "project" / ".jobs").glob("*/started.json"):
            started = json.loads(path.read_text())
            for pid in (started["supervisor"]["pid"], started["pid"]):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.row(156)
@pytest.mark.parametrize("size", [0, 60])
def test_a_record_that_a_power_cut_has_emptied_is_written_again_from_what_the_server_says(
    workspace: Workspace, size: int
) -> None:
    job = begin(workspace, "first", "echo the only copy; sleep 60")
    try:
        here = workspace.config.local.job(job.id)
        until(lambda: workspace.pull_logs(by_id(job.id)).jobs and (here / "job.out").exists())
        path = here / "job.yaml"
        path.write_bytes(path.read_bytes()[:size])
        answer = workspace.list_jobs(JobSelection())
        assert (dict(answer.errors), answer.bad) == ({}, ())
        (found,) = [each for each in answer.jobs if each.id == job.id]
        assert (found.state, found.command) == (JobState.RUNNING, "echo the only copy; sleep 60")
        assert found.key == job.job.key if size else found.key > job.job.key
        assert log_of(workspace, job.id) == b"the only copy\n"
    finally:
        workspace.stop_jobs(by_id(job.id), signal="SIGKILL")


@pytest.mark.slow
@pytest.mark.row(155)
async def test_a_program_that_holds_the_records_holds_up_no_other_work_and_is_named(workspace: Workspace) -> None:
    """Another one that was stopped in the midst of writing."""
    told: list[object] = []
    registry = Registry(workspace.config.local.jobs)
    registry.create([])
    holding = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    lock = str(registry.folder / "lock")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async with HostPool(workspace.config) as pool:
        context = Context(workspace.config, pool, registry, told.append)
        ticking = asyncio.create_task(tick())
        with subprocess.Popen(
            [sys.executable, "-c", holding, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdin is not None
            holder.stdout.readline()
            ticks = 0
            starting = asyncio.create_task(start_specs(context, [JobSpec(new_job_id(), "first", "true")]))
            await asyncio.to_thread(until, lambda: told)
            assert not starting.done()
            text = f"waiting for another remote-tool that is writing the records here; ps -fp {holder.pid}"
            assert told == [Notice("", text)]
            # Whoever blocks the loop does so until the notice, or until the lock is given up.
            assert ticks > 3
            holder.stdin.close()
        ticking.cancel()
        assert (await starting).errors == {}
