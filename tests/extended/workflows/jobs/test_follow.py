"""Several commands follow and bring home the same jobs while links break: each shows every byte once."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool import FanOutRequest, JobState, Workspace
from remote_tool.errors import RemoteToolError
from remote_tool.jobs.job import JobSpec, new_job_id
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.agent_client import NoAnswerError
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import Notice
from remote_tool.workflows.fan_out.observer import Observer
from remote_tool.workflows.jobs import follow
from remote_tool.workflows.jobs.log_streams import Viewer
from remote_tool.workflows.selection import JobSelection
from remote_tool.workspace import Hooks
from tests.extended.workflows.jobs.test_jobs import by_id, log_of, remote_folder, until
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from remote_tool.workflows.events import Event
    from remote_tool.workflows.jobs.follow import Chunk
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

SEED = int(os.environ.get("TESTS_SEED", "23"))
# Holes begin with a block.
BLOCK = b"begin678" * 8192
PRINTING = "i=0; until test -e {go}; do i=$((i+1)); echo line $i; echo error $i >&2; sleep 0.01; done; echo end $i"


def counted(text: bytes, word: str) -> bytes:
    """Return the lines that a job printed that says at its end how many they were."""
    match = re.search(rb"end ([0-9]+)\n$", text)
    assert match, text[-100:]
    return b"".join(b"%s %d\n" % (word.encode(), number) for number in range(1, int(match[1]) + 1))


def kill_control_programs(server: TestServer) -> int:
    """Kill what answers on a server, as a kernel without memory does; return how many there were."""
    sessions = set(server.session_pids())
    killed = 0
    for entry in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            is_one = entry.name.isdigit() and b"run_control.py" in (entry / "cmdline").read_bytes()
            if is_one and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) in sessions:
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
    return killed


class Follower:
    """What one follower has shown of a job."""

    def __init__(self) -> None:
        self.shown = {"out": b"", "err": b""}

    def show(self, chunk: Chunk) -> None:
        self.shown[chunk.stream] += chunk.data

    def wait_for_more(self) -> None:
        """Return when another line has come."""
        before = len(self.shown["out"])
        until(lambda: len(self.shown["out"]) > before)

    def check(self) -> None:
        """Every line has come once."""
        out = self.shown["out"]
        end = out[out.rindex(b"end ") :]
        assert out == counted(out, "line") + end
        assert self.shown["err"] == counted(out, "error")


@pytest.mark.slow
def test_only_the_servers_of_named_jobs_are_asked(
    tmp_path: Path, shared_project: Path, shared_servers: tuple[TestServer, TestServer]
) -> None:
    first = shared_servers[0]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        silent = replace(first, name="silent", port=listener.getsockname()[1])
        # The same project for the server, with a list of jobs of its own.
        workspace = Workspace.find(make_project(tmp_path / "project", [first, silent], name=shared_project.name))
        jobs = [workspace.start("first", "echo printed", sync=False).job for _ in range(2)]
        running = workspace.start("first", "exec sleep 600", sync=False).job
        for names in ([jobs[0].id], [job.id for job in jobs]):
            follower = Follower()
            assert workspace.follow_jobs(JobSelection(tuple(names), hidden=True), follower.show).exit_code == 0
            assert follower.shown["out"] == b"printed\n" * len(names)
        assert workspace.wait_jobs(by_id(jobs[0].id)).jobs[0].state is JobState.SUCCEEDED
        assert workspace.stop_jobs(JobSelection((str(running.key),))).jobs[0].state is JobState.KILLED
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.row(150)
@pytest.mark.slow
def test_what_another_command_brings_home_while_the_link_is_away_is_shown_too(
    shared_project: Path, shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    follower = Follower()
    interrupted: list[str] = []

    def report(event: Event) -> None:
        """Type job-rsync before the follower may try again."""
        if isinstance(event, Notice) and "trying again" in event.text:
            assert remote_tool("job-rsync", "--server", "second", cwd=shared_project).returncode == 0
            interrupted.append(event.text)

    workspace = Workspace.find(shared_project, Hooks(report=report))
    job = workspace.start("second", PRINTING.format(go=tmp_path / "go"), sync=False)
    with ThreadPoolExecutor() as threads:
        following = threads.submit(workspace.follow_jobs, by_id(job.id), follower.show)
        for _ in range(3):
            interrupted.clear()
            follower.wait_for_more()
            shared_servers[1].drop_connections()
            until(lambda: interrupted)
        (tmp_path / "go").touch()
        assert following.result(30).exit_code == 0
    follower.check()
    assert log_of(workspace, job.id) == follower.shown["out"]


@pytest.mark.row(150)
@pytest.mark.slow
def test_a_fan_out_shows_what_another_command_brings_home(
    shared_project: Path, shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    follower = Follower()
    interrupted: list[str] = []

    def report(event: Event) -> None:
        if isinstance(event, Notice) and "trying again" in event.text:
            remote_tool("job-rsync", "--server", "second", cwd=shared_project)
            interrupted.append(event.text)

    workspace = Workspace.find(shared_project, Hooks(report=report))
    request = FanOutRequest(PRINTING.format(go=tmp_path / "go"), items=("a",), servers=("second",), sync=False)
    with ThreadPoolExecutor() as threads:
        following = threads.submit(workspace.fan_out, request, observer=Observer(on_chunk=follower.show))
        follower.wait_for_more()
        shared_servers[1].drop_connections()
        until(lambda: interrupted)
        (tmp_path / "go").touch()
        assert following.result(30).undone == 0
    follower.check()


@pytest.mark.row(151)
@pytest.mark.slow
def test_a_control_program_that_is_killed_is_an_interruption_like_a_broken_link(
    shared_project: Path, shared_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    follower = Follower()
    told: list[Event] = []
    workspace = Workspace.find(shared_project, Hooks(report=told.append))
    job = workspace.start("second", PRINTING.format(go=tmp_path / "go") + "; exit 7", sync=False)
    with ThreadPoolExecutor() as threads:
        following = threads.submit(workspace.follow_jobs, by_id(job.id), follower.show)
        for _ in range(2):
            follower.wait_for_more()
            told.clear()
            assert kill_control_programs(shared_servers[1]) == 1
            until(
                lambda: any(isinstance(each, Notice) and "ended by SIGKILL; trying again" in each.text for each in told)
            )
        (tmp_path / "go").touch()
        answer = following.result(30)
    assert (dict(answer.errors), answer.own_exit_code, answer.exit_code) == ({}, 0, 7)
    follower.check()


@pytest.mark.row(169)
@pytest.mark.slow
def test_a_lost_link_is_reported_once_per_cause_and_its_return_once(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    told: list[str] = []

    def report(event: Event) -> None:
        if isinstance(event, Notice):
            told.append(event.text)

    workspace = Workspace.find(make_project(tmp_path / "project", [server]), Hooks(report=report))
    workspace.prepare()
    command = f"echo ready; until test -e {tmp_path / 'go'}; do sleep 0.1; done"
    job = workspace.start(server.name, command, sync=False)
    follower = Follower()
    with ThreadPoolExecutor() as threads:
        told.clear()
        following = threads.submit(workspace.follow_jobs, by_id(job.id), follower.show)
        until(lambda: follower.shown["out"] == b"ready\n")
        # From now on every try is refused.
        try:
            server.stop()
            until(lambda: sum("trying again" in each for each in told) > 1)
            time.sleep(6)
            said = list(told)
        finally:
            server.start()
            (tmp_path / "go").touch()
        assert following.result(30).exit_code == 0
    lost, refused = said
    assert "the connection was lost" in lost
    assert "refused the connection" in refused
    assert len(told) == 3
    assert told[2].startswith("is answering again after ")


@pytest.mark.row(151)
@pytest.mark.slow
def test_a_server_that_answers_no_more_is_given_up_after_a_while_and_the_job_has_not_failed(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "GIVE_UP_AFTER", 0.1)
    server = make_server()
    workspace = Workspace.find(make_project(tmp_path / "project", [server]))
    workspace.prepare()
    job = workspace.start("first", "echo one; exec sleep 1000", sync=False)
    follower = Follower()
    with ThreadPoolExecutor() as threads:
        following = threads.submit(workspace.follow_jobs, by_id(job.id), follower.show)
        follower.wait_for_more()
        python = server.home / "project" / ".remote-scripts" / "python"
        python.rename(python.with_name("away"))
        python.write_text("#!/bin/sh\necho no memory >&2; exit 9\n")
        python.chmod(0o700)
        kill_control_programs(server)
        answer = following.result(30)
    assert isinstance(answer.errors["first"], NoAnswerError)
    assert str(answer.errors["first"]) == "first: the control program ended with status 9: no memory"
    assert (answer.own_exit_code, answer.jobs[0].state) == (1, JobState.RUNNING)
    python.unlink()
    python.with_name("away").rename(python)
    job.kill()


@pytest.mark.row(150)
@pytest.mark.slow
def test_what_a_job_writes_while_its_output_comes_home_is_not_taken_for_all(
    workspace: Workspace, shared_servers: tuple[TestServer, TestServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends meanwhile: more than was there at first is left for the next time."""
    go, count = tmp_path / "go", 40_000_000
    job = workspace.start(
        "second", f"head -c {count} /dev/zero; until test -e {go}; do sleep 0.01; done; echo end", sync=False
    )
    out = remote_folder(shared_servers[1], job.id) / "job.out"
    until(lambda: out.stat().st_size == count)
    original = LogFolder.write

    def write(folder: LogFolder, stream: str, offset: int, data: bytes) -> None:
        """Hold up the first piece until the job has ended."""
        if not go.exists():
            go.touch()
            until((out.parent / "ended.json").exists)
        original(folder, stream, offset, data)

    monkeypatch.setattr(LogFolder, "write", write)
    assert workspace.pull_logs(by_id(job.id)).jobs[0].state is JobState.SUCCEEDED
    assert len(log_of(workspace, job.id)) == count
    workspace.pull_logs(by_id(job.id))
    assert log_of(workspace, job.id)[count:] == b"end\n"


@pytest.mark.row(150)
@pytest.mark.slow
def test_followers_show_every_byte_whatever_others_do_and_the_link_does(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """TESTS_SEED draws other orders of cuts, job-rsync and job-wait."""
    server = make_server()
    workspace = Workspace.find(make_project(tmp_path / "project", [server]))
    workspace.prepare()
    go = tmp_path / "go"
    job = workspace.start("first", PRINTING.format(go=go), sync=False)
    followers = [Follower() for _ in range(3)]
    with ThreadPoolExecutor(len(followers)) as threads:
        following = []
        for follower in followers:
            following.append(threads.submit(Workspace.find(workspace.root).follow_jobs, by_id(job.id), follower.show))
            follower.wait_for_more()
        _disturb(workspace, server, job.id)
        go.touch()
        assert [each.result(60).exit_code for each in following] == [0, 0, 0]
    for follower in followers:
        follower.check()
        assert follower.shown == followers[0].shown
    workspace.pull_logs(by_id(job.id))
    assert {stream: log_of(workspace, job.id, stream) for stream in ("out", "err")} == followers[0].shown


def _disturb(workspace: Workspace, server: TestServer, job_id: str) -> None:
    draw = random.Random(SEED)

    def away() -> None:
        """Take the link away, and have another command be the first when it is back."""
        server.stop()
        time.sleep(draw.uniform(0.1, 0.6))
        server.start()
        bring()

    def bring() -> None:
        with suppress(RemoteToolError):
            workspace.pull_logs()

    def wait() -> None:
        with suppress(RemoteToolError):
            workspace.wait_jobs(by_id(job_id), timeout=draw.uniform(0.01, 0.3))

    actions = [away, away, server.drop_connections, server.drop_connections, bring, bring, wait]
    draw.shuffle(actions)
    for action in actions:
        action()
        time.sleep(draw.uniform(0.0, 0.3))


@pytest.mark.row(26, 150)
async def test_dropped_output_that_was_never_shown_is_reported(workspace: Workspace) -> None:
    """Another command has brought home what was left of it; then the job began the file again."""
    told: list[Event] = []
    shown: list[bytes] = []
    registry = Registry(workspace.config.local.jobs)
    (job,) = registry.create([JobSpec(new_job_id(), "first", "true")])
    logs = LogFolder(registry.folder / job.id)
    viewer = Viewer(lambda _job, _stream, data: shown.append(data), lambda _job, _stream: True)
    async with HostPool(workspace.config) as pool:
        context = Context(workspace.config, pool, registry, told.append)
        logs.write("out", 0, BLOCK)
        await viewer.catch_up(context, job)
        logs.skip("out", 1 << 30)
        logs.write("out", 1 << 30, b"end")
        await viewer.catch_up(context, job)
        await viewer.catch_up(context, job)
        logs.reset("out")
        logs.write("out", 0, b"again")
        await viewer.catch_up(context, job)
        assert viewer.next_offset(job, "out", 100) == 5, "what another command has just brought home is asked for"
        await viewer.take(job, "out", 0, b"again and")
        await viewer.take(job, "out", 3, b"in")
    assert shown == [BLOCK, b"end", b"again", b" and"]
    (notice,) = told
    assert isinstance(notice, Notice)
    assert re.fullmatch(
        rf"job {job.key}: 1,073,676,288 bytes of older output \(out\) were dropped by log_limit", notice.text
    )
