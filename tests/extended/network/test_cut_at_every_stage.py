"""The link goes at every stage of every command; then the command is typed again, and all is as if it never had.

Each case: a command runs, and at a certain moment its link is cut, or blinks, or its sshd is killed. It has to end by
itself. Then the link is mended and the command is given once more. Nothing may run twice, no byte may differ, and
nothing may hang.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState, Workspace
from remote_tool.errors import RemoteToolError
from remote_tool.jobs.job import JobSpec
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import login_errors, ssh_config
from remote_tool.transport.ssh.channel import SshChannel
from remote_tool.transport.ssh.connection import Connection
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import ignore
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from tests.below import files_below
from tests.figures import record_case, record_figure
from tests.network_hosts import Network
from tests.processes import read_of
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool.workflows.jobs.follow import Chunk
    from tests.network_hosts import NetworkHost

Action = Callable[[], object]

FAULTS = ("cut", "blink", "kill")
BLINK_SECONDS = 0.3
# All waits of ours together, with keepalive, connecting and logging in as quick as below.
LONGEST = 25.0
SWEEP = "link lost at every stage of a command"
LINES = 300


class Stage:
    """The server, the user's project, and the fault that is about to happen once."""

    def __init__(self, host: NetworkHost, workspace: Workspace) -> None:
        self.host = host
        self.workspace = workspace
        self.happened = threading.Event()
        self._fault = ""
        self._threads: list[threading.Thread] = []
        self._patience = pytest.MonkeyPatch()

    def arm(self, fault: str) -> None:
        """Be ready; from now on waiting is short, too short for a busy machine outside of the fault."""
        self._fault = fault
        self.happened.clear()
        self._patience.setattr(ssh_config, "KEEPALIVE_SECONDS", 0.3)
        self._patience.setattr(login_errors, "CONNECT_SECONDS", 4.0)
        self._patience.setattr(login_errors, "LOGIN_SECONDS", 4.0)

    def strike(self) -> None:
        """Let it happen now; only the first time."""
        if not self._fault:
            return
        fault, self._fault = self._fault, ""
        self.happened.set()
        if fault == "kill":
            self.host.drop_connections()
            self.host.mend()
        else:
            self.host.cut()
        if fault == "blink":
            self._start(self._mend_soon)

    def strike_when(self, condition: Callable[[], object]) -> None:
        """Let it happen as soon as something is true on the server."""

        def watch() -> None:
            deadline = time.monotonic() + LONGEST
            while time.monotonic() < deadline and self._fault:
                # What is looked at may be renamed or removed just then.
                with suppress(FileNotFoundError):
                    if condition():
                        self.strike()
                time.sleep(0.001)

        self._start(watch)

    def mute(self) -> None:
        """Let nothing more come from the server until it happens."""
        if self._fault:
            self.host.mute()

    def mend_in(self, seconds: float) -> None:
        """Put the cable in again some time after it was pulled, for a command that waits for that."""

        def mend() -> None:
            if self.happened.wait(LONGEST):
                time.sleep(seconds)
                self.host.mend()

        self._start(mend)

    def attempt(self, command: Callable[[], object]) -> None:
        """Run a command into the fault: it ends in time, with a result or an error of ours."""
        began = time.monotonic()
        with suppress(RemoteToolError):
            command()
        seconds = time.monotonic() - began
        # On a busy server what is waited for may come when the command has long given up.
        self.happened.wait(LONGEST)
        self.calm()
        assert self.happened.is_set(), "the fault did not happen"
        assert seconds < LONGEST

    def calm(self) -> None:
        """Have all as it was before."""
        self._fault = ""
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self.host.mend()
        self._patience.undo()

    def _mend_soon(self) -> None:
        time.sleep(BLINK_SECONDS)
        self.host.mend()

    def _start(self, work: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()


@pytest.fixture(scope="module")
def server(namespaces: None, tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[NetworkHost]:  # noqa: ARG001
    """One host for all cases of a worker."""
    with Network(tmp_path_factory.mktemp("network"), ssh_key) as network:
        yield network.host("far")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, server: NetworkHost) -> Path:
    root = make_project(tmp_path_factory.mktemp("projects") / "project", [server])
    Workspace.find(root).prepare()
    return root


@pytest.fixture
def stage(server: NetworkHost, project: Path) -> Iterator[Stage]:
    stage = Stage(server, Workspace.find(project))
    yield stage
    stage.calm()


def at_step(stage: Stage, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strike when the SSH library gets so far with a login."""
    original = getattr(Connection, step)

    def then_strike(connection: Connection, *arguments: object) -> object:
        stage.strike()
        return original(connection, *arguments)

    monkeypatch.setattr(Connection, step, then_strike)


def at_request(operation: str, monkeypatch: pytest.MonkeyPatch, before: Action, after: Action = lambda: None) -> None:
    """Do something just before and just after a question to the supervisor is written."""
    original = SshChannel.write
    mark = f'"op":"{operation}"'.encode()

    async def write(channel: SshChannel, data: bytes) -> None:
        if mark in data:
            before()
        await original(channel, data)
        if mark in data:
            after()

    monkeypatch.setattr(SshChannel, "write", write)


def at_effect(stage: Stage, operation: str, monkeypatch: pytest.MonkeyPatch, condition: Callable[[], object]) -> None:
    """Strike when a question has had an effect on the server, and before its answer comes."""
    at_request(operation, monkeypatch, stage.mute)
    stage.strike_when(condition)


def around_request(stage: Stage, operation: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strike before or after the request."""
    if moment == "before the request":
        at_request(operation, monkeypatch, stage.strike)
    else:
        at_request(operation, monkeypatch, lambda: None, stage.strike)


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


# Starting

CONNECTING = {
    "before the banner": "connection_made",
    "before the key": "validate_host_public_key",
    "after the login": "create_session",
}
STARTING = (*CONNECTING, "before the request", "after the request", "at its folder", "at its record")


@pytest.mark.picked_case("before the banner-kill")
@pytest.mark.row(9, 14, 36)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("moment", STARTING)
def test_a_start(stage: Stage, moment: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, workspace = stage.host, stage.workspace
    known = {job.id for job in workspace.select_local(JobSelection(stopped=True))}
    stage.arm(fault)
    strike_in_start(stage, moment, monkeypatch)
    command = "echo started >> $REMOTE_TOOL_JOB_ID.txt; exec sleep 1000"
    stage.attempt(lambda: workspace.start("far", command, sync=False))
    monkeypatch.undo()
    (job,) = [job for job in workspace.select_local(JobSelection(stopped=True)) if job.id not in known]
    folder = host.home / "project" / ".jobs" / job.id
    # Whatever was thought of it, what the server knows is what is told.
    had_begun = folder.exists()
    (seen,) = workspace.list_jobs(only(job.id)).jobs
    if seen.state is JobState.FAILED:
        assert seen.reason.startswith("not started: ")
        assert not folder.exists()
    else:
        # A request that arrived may begin its work only now.
        assert seen.state in ({JobState.RUNNING} if had_begun else {JobState.RUNNING, JobState.STARTING}), seen
        assert folder.exists() or seen.state is JobState.STARTING, seen
        # The same start again, by its id: it happens once.
        assert start_again(workspace, job.id, command) is JobState.RUNNING
        until(lambda: len(marked(host, job.id)) == 1)
        started = host.home / "project" / f"{job.id}.txt"
        until(started.exists)
        assert started.read_text() == "started\n"
        workspace.stop_jobs(only(job.id), signal="SIGKILL")
    assert marked(host, job.id) == []
    record_case(SWEEP)


def strike_in_start(stage: Stage, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fault happen at a moment of a start."""
    jobs = stage.host.home / "project" / ".jobs"
    jobs.mkdir(mode=0o700, exist_ok=True)
    before = set(jobs.iterdir())

    def appeared(record: str) -> bool:
        new = [folder for folder in jobs.iterdir() if folder not in before and not folder.name.startswith(".")]
        return any((folder / record).exists() for folder in new)

    if moment in CONNECTING:
        at_step(stage, CONNECTING[moment], monkeypatch)
    elif moment in {"at its folder", "at its record"}:
        record = "spec.json" if moment == "at its folder" else "started.json"
        at_effect(stage, "start", monkeypatch, lambda: appeared(record))
    else:
        around_request(stage, "start", moment, monkeypatch)


def start_again(workspace: Workspace, job_id: str, command: str) -> JobState:
    """Ask for a start that was asked for before; the server's answer."""

    async def work() -> JobState:
        async with HostPool(workspace.config) as pool:
            registry = Registry(workspace.config.local.jobs)
            context = Context(workspace.config, pool, registry, ignore)
            answer = await start_specs(context, [JobSpec(job_id, "far", command)])
            answer.raise_if_any_failed()
            return answer.jobs[0].state

    return asyncio.run(work())


# Following


@pytest.mark.row(14, 36)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("moment", ["before the request", "after the request", "first bytes", "last bytes"])
def test_a_tail(stage: Stage, moment: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, workspace = stage.host, stage.workspace
    write = f"import os, time\nfor n in range({LINES}):\n    os.write(1, os.urandom(300)); time.sleep(0.002)\n"
    job = workspace.start("far", f'python -c "{write}"', sync=False)
    folder = host.home / "project" / ".jobs" / job.id
    shown: list[bytes] = []

    def show(chunk: Chunk) -> None:
        shown.append(chunk.data)
        if (moment == "first bytes" or len(b"".join(shown)) > 0.8 * LINES * 300) and "bytes" in moment:
            stage.strike()

    stage.arm(fault)
    if "request" in moment:
        around_request(stage, "follow", moment, monkeypatch)
    if fault == "cut":
        # It waits for the link, and goes on by itself.
        stage.mend_in(2.0)
    stage.attempt(lambda: workspace.follow_jobs(only(job.id), show))
    monkeypatch.undo()
    again: list[bytes] = []
    answer = workspace.follow_jobs(only(job.id), lambda chunk: again.append(chunk.data))
    written = (folder / "job.out").read_bytes()
    assert answer.exit_code == 0
    assert len(written) == LINES * 300
    assert b"".join(shown) == written
    assert b"".join(again) == written
    assert (workspace.config.local.job(job.id) / "job.out").read_bytes() == written
    record_figure("bytes of logs compared over lost links", len(written))
    record_case(SWEEP)


# Stopping


@pytest.mark.row(21, 36)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("moment", ["before the request", "after the request", "at the wish", "at the end"])
def test_a_kill(stage: Stage, moment: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, workspace = stage.host, stage.workspace
    command = "trap 'sleep 0.5; exit 3' TERM; echo up; while :; do sleep 0.1; done"
    job = workspace.start("far", command, sync=False)
    folder = host.home / "project" / ".jobs" / job.id
    until((folder / "job.out").read_bytes)
    stage.arm(fault)
    if moment in {"at the wish", "at the end"}:
        record = "stop.json" if moment == "at the wish" else "ended.json"
        at_effect(stage, "stop", monkeypatch, (folder / record).exists)
    else:
        around_request(stage, "stop", moment, monkeypatch)
    stage.attempt(lambda: workspace.stop_jobs(only(job.id)))
    monkeypatch.undo()
    ended = (folder / "ended.json").read_bytes() if (folder / "ended.json").exists() else None
    (stopped,) = workspace.stop_jobs(only(job.id)).jobs
    assert (stopped.state, stopped.exit_code) == (JobState.KILLED, 3)
    assert marked(host, job.id) == []
    # What was recorded stays.
    assert ended in {None, (folder / "ended.json").read_bytes()}
    record_case(SWEEP)


# Running a command


@pytest.mark.row(36)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("moment", ["before the request", "after the request", "in the middle"])
def test_a_command(stage: Stage, moment: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, workspace = stage.host, stage.workspace
    mark = f"mark{random.randrange(10**9)}"
    # On a link that blinks it comes to its end, and on one that is gone to none.
    command = f"echo {mark}; sleep 2; : {mark}; head -c 200000 /dev/zero"
    got: list[bytes] = []
    statuses: list[int] = []

    def take(_server: str, _stream: object, data: bytes) -> None:
        got.append(data)
        if moment == "in the middle":
            stage.strike()

    def run() -> None:
        statuses.append(workspace.run(command, ["far"], on_output=take).values["far"])

    stage.arm(fault)
    if moment != "in the middle":
        around_request(stage, "run", moment, monkeypatch)
    stage.attempt(run)
    monkeypatch.undo()
    expected = mark.encode() + b"\n" + bytes(200_000)
    # Whole and with its status, or with an error: never a part that counts as done.
    assert statuses in ([[], [0]] if fault == "blink" else [[]])
    if statuses:
        assert b"".join(got) == expected
    # What was interrupted does not go on in the dark for longer than the link is away.
    until(lambda: not any(mark in line for line in host.pids().values()))
    got.clear()
    run()
    assert b"".join(got) == expected
    record_case(SWEEP)


# Sending


@pytest.mark.row(36, 70)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("moment", ["first file", "in a big file", "list of what was sent"])
def test_a_sync(stage: Stage, moment: str, fault: str, project: Path) -> None:
    host, workspace = stage.host, stage.workspace
    chance = random.Random(moment + fault)
    for number in range(30):
        (project / f"small-{number}").write_bytes(chance.randbytes(2000))
    (project / "big").write_bytes(chance.randbytes(1_500_000))
    there = host.home / "project"
    host.slow("5mbit")
    stage.arm(fault)
    if moment == "first file":
        stage.strike_when(lambda: (there / ".remote-scripts" / "sync").read_bytes().startswith(b"incomplete"))
    elif moment == "in a big file":
        stage.strike_when(lambda: any(size > 200_000 for size in partial_sizes(there)))
    else:
        small = (project / "small-29").read_bytes()
        stage.strike_when(lambda: (there / "small-29").exists() and (there / "small-29").read_bytes() == small)
    stage.attempt(workspace.rsync)
    workspace.rsync()
    assert content_of(there) == content_of(project)
    assert not workspace.rsync().values["far"].changed
    record_case(SWEEP)


def partial_sizes(folder: Path) -> list[int]:
    """Return the sizes of what rsync is writing: hidden files, and those in its folder for partial ones."""
    sizes = []
    for path in files_below(folder):
        with suppress(OSError):
            if ".big." in path.name or "partial" in str(path.parent.name):
                sizes.append(path.stat().st_size)
    return sizes


def content_of(folder: Path) -> dict[str, str]:
    """Return what a project holds, without what is ours and what jobs wrote."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files_below(folder)
        if not path.relative_to(folder).parts[0].startswith(".") and path.suffix != ".txt"
    }


def only(job_id: str) -> JobSelection:
    return JobSelection(jobs=(job_id,), stopped=True)


def marked(host: NetworkHost, job_id: str) -> list[int]:
    """Return the processes of a job's command: their environment says which job they are of."""
    found = []
    for pid in host.pids():
        with suppress(OSError, StopIteration):
            if f"REMOTE_TOOL_JOB_ID={job_id}".encode() in read_of(host.outer_pid(pid), "environ"):
                found.append(pid)
    return found
