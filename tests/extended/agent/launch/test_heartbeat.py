"""The supervisors of a launch stop each other when one node fails, hangs or is gone, without a client (row 88)."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.launch import heartbeat
from remote_tool.agent.launch.cause import Cause, find_rank_error, read_cause, read_membership
from remote_tool.agent.launch.first_node import FirstNodeWatch, listen_on
from remote_tool.agent.launch.other_node import OtherNodeWatch
from remote_tool.agent.launch.wire import PeerClosed, PeerSession
from remote_tool.agent.proc.processes import find_alive
from remote_tool.agent.supervisor.launch import make_watch
from tests.below import contents_below
from tests.extended.agent.conftest import PATIENCE, PretendServer, changed_copy, wait_until
from tests.processes import open_files, read_of
from tests.sshd import free_low_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAMES = ["first", "second", "third"]
SLEEP = "exec sleep 300"
UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"
BOUND = 15.0
# The first line that a node receives is shorter; the next one is signed.
GREETING = 100
# tcpi_bytes_received in the kernel's struct tcp_info.
BYTES_RECEIVED = slice(128, 136)


class Launch:
    """A launch of three nodes on one machine; a node is a job."""

    def __init__(
        self,
        server: PretendServer,
        *commands: str,
        only: int | None = None,
        lost_after: float = 60.0,
        goes_on: bool = False,
    ) -> None:
        self.server = server
        self.secret = secrets.token_hex(32)
        self.port = free_low_port()
        watch = {
            "servers": NAMES,
            "address": "127.0.0.1",
            "port": self.port,
            "secret": self.secret,
            "lost_after": lost_after,
            "goes_on_without_workers": goes_on,
        }
        jobs = [
            server.new_job(command, node_rank=rank, rank_offset=rank * 2, launch_id="launch", grace=45, watch=watch)
            for rank, command in enumerate(commands)
        ]
        self.jobs = jobs
        self.ids = [job["id"] for job in jobs]
        self.start(*range(len(jobs) if only is None else only))

    def start(self, *ranks: int) -> None:
        """Start nodes, with one question."""
        answers = self.server.call("start", jobs=[self.jobs[rank] for rank in ranks])["jobs"]
        assert not [answer["error"] for answer in answers if "error" in answer]
        for rank in ranks:
            wait_until((self.server.jobs / self.ids[rank] / "started.json").exists, "the start")

    def go(self) -> None:
        """Let commands that wait for it end."""
        (self.server.project / "go").touch()

    def wait_until_joined(self) -> None:
        """Wait until each of the other nodes has heard the first."""
        for rank in range(1, len(self.ids)):
            self.wait_until_joined_by(rank)

    def wait_until_joined_by(self, rank: int) -> None:
        """Wait until one of the other nodes has heard the first."""
        wait_until(partial(self._has_heard, self.server.supervisor(self.ids[rank])), "the joining")

    def _has_heard(self, supervisor: int) -> bool:
        return received_bytes(supervisor, self.port) > GREETING

    def end(self, *ranks: int) -> list[dict[str, Any]]:
        """Return how nodes ended, once they have."""
        ids = [self.ids[rank] for rank in ranks]
        return list(self.server.wait(*ids).values())

    def kill_node(self, rank: int) -> None:
        """Kill everything of a node, as the end of its machine would."""
        for pid in [self.server.supervisor(self.ids[rank]), *self.server.members(self.ids[rank])]:
            os.kill(pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether no process of it is left, not even a supervisor that waits for the others."""
        supervisors = [find_alive(self.server.record(job, "started")["supervisor"]) for job in self.ids]
        return not any(supervisors) and not any(self.server.members(job) for job in self.ids)


def received_bytes(pid: int, port: int) -> int:
    """Count what a process has received and read over its connection to this port; 0 without one."""
    with contextlib.suppress(OSError), borrow_connection(pid, port) as connection:
        received = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)[BYTES_RECEIVED]
        waiting = fcntl.ioctl(connection, termios.FIONREAD, bytes(4))
        return int.from_bytes(received, sys.byteorder) - int.from_bytes(waiting, sys.byteorder)
    return 0


@contextlib.contextmanager
def borrow_connection(pid: int, port: int) -> Iterator[socket.socket]:
    """Copy the socket of another process that is connected to a port."""
    descriptor = os.pidfd_open(pid)
    try:
        for number, target in open_files(pid).items():
            if not target.startswith("socket:"):
                continue
            with socket.socket(fileno=pidfd_getfd(descriptor, number)) as connection:
                if connection.family == socket.AF_INET and connection.getpeername()[1] == port:
                    yield connection
                    return
        raise OSError("it has no such connection")
    finally:
        os.close(descriptor)


def own_port(pid: int, port: int) -> int:
    """Return from which port a process is connected to this one; 0 if it is not."""
    with contextlib.suppress(OSError), borrow_connection(pid, port) as connection:
        return int(connection.getsockname()[1])
    return 0


def pidfd_getfd(descriptor: int, number: int) -> int:
    """Copy a descriptor of another process."""
    copied = int(ctypes.CDLL(None, use_errno=True).syscall(438, descriptor, number, 0))
    if copied < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return copied


@pytest.fixture
def start(server: PretendServer) -> Callable[..., Launch]:
    return lambda *commands, **options: Launch(server, *commands, **options)


@pytest.fixture
def start_patient(tmp_path: Path, installed: Path) -> Iterator[Callable[..., Launch]]:
    """As ``start``, with nodes that wait for each other for as long as a busy machine makes them."""
    changes = {
        "first_node": {"_EVIDENCE_SECONDS = 0.7": "_EVIDENCE_SECONDS = 30.0"},
        "heartbeat": {"_VERDICT_SECONDS = 3.0": "_VERDICT_SECONDS = 30.0"},
        "other_node": {"\n_JOIN_SECONDS = 2.0": "\n_JOIN_SECONDS = 30.0"},
    }
    modules = {f"agent/launch/{name}.py": texts for name, texts in changes.items()}
    server = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "patient", modules))
    yield lambda *commands, **options: Launch(server, *commands, **options)
    server.clean()


def states_of(launch: Launch) -> list[str]:
    return [launch.server.status(job)["state"] for job in launch.ids]


@pytest.mark.row(88)
@pytest.mark.parametrize("failing", [0, 2])
def test_when_one_node_fails_the_others_are_stopped_and_say_why(start: Callable[..., Launch], failing: int) -> None:
    commands = [SLEEP] * 3
    commands[failing] = "sleep 0.5; exit 7"
    launch = start(*commands)
    began = time.monotonic()
    ends = launch.end(0, 1, 2)
    assert time.monotonic() - began < BOUND
    assert states_of(launch) == ["failed"] * 3
    for rank, end in enumerate(ends):
        if rank == failing:
            assert (end["exit_code"], end["stopped_with_launch"]) == (7, False)
        else:
            assert f"stopped because {NAMES[failing]} (node {failing}) ended with exit code 7" in end["reason"]
            assert end["lost_node"] is None
    wait_until(launch.is_gone, "the end of the supervisors")


@pytest.mark.row(339)
def test_a_launch_may_go_on_without_the_others_and_names_them(start: Callable[..., Launch]) -> None:
    launch = start(UNTIL_GO, "exit 7", SLEEP, goes_on=True)
    printed = launch.server.jobs / launch.ids[0] / "job.err"
    (failed,) = launch.end(1)
    assert (failed["exit_code"], failed["stopped_with_launch"]) == (7, False)
    launch.wait_until_joined_by(2)
    launch.kill_node(2)
    wait_until(lambda: "third (node 2) has not responded for" in printed.read_text(), "the loss is seen")
    assert "second (node 1) ended with exit code 7; the others go on without it\n" in printed.read_text()
    assert launch.server.status(launch.ids[0])["state"] == "running"
    launch.go()
    (ended,) = launch.end(0)
    assert (ended["exit_code"], ended["reason"]) == (0, "")
    wait_until(launch.is_gone, "the end of the supervisors")


@pytest.mark.row(338)
def test_no_launch_goes_on_without_the_first_node(start: Callable[..., Launch]) -> None:
    launch = start("sleep 0.5; exit 7", SLEEP, SLEEP, goes_on=True)
    launch.end(0, 1, 2)
    assert states_of(launch) == ["failed"] * 3
    wait_until(launch.is_gone, "the end of the supervisors")


@pytest.mark.row(88)
@pytest.mark.slow
def test_a_start_is_reported_once_the_first_node_knows_the_node(start_patient: Callable[..., Launch]) -> None:
    """Else one that dies then would be waited for as one that is slow to start."""
    launch = start_patient(SLEEP, SLEEP, SLEEP, only=0)
    with ThreadPoolExecutor() as pool:
        others = pool.submit(launch.start, 1, 2)
        wait_until(lambda: all((launch.server.jobs / job / "started.json").exists() for job in launch.ids[1:]), "them")
        launch.start(0)
        others.result(PATIENCE)
    assert all(received_bytes(launch.server.supervisor(job), launch.port) > 0 for job in launch.ids[1:])


@pytest.mark.row(88)
@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
def test_when_a_node_is_gone_the_others_are_stopped_within_15_seconds(
    start_patient: Callable[..., Launch], dead: int
) -> None:
    # At once: who was told that all have started may rely on it.
    launch = start_patient(SLEEP, SLEEP, SLEEP)
    launch.kill_node(dead)
    began = time.monotonic()
    left = [rank for rank in range(3) if rank != dead]
    ends = launch.end(*left)
    assert time.monotonic() - began < BOUND
    assert {end["lost_node"] for end in ends} == {dead}
    assert all(f"{NAMES[dead]} (node {dead}) has not responded" in end["reason"] for end in ends)
    assert [launch.server.status(launch.ids[rank])["state"] for rank in left] == ["failed", "failed"]


@pytest.mark.row(88)
@pytest.mark.slow
def test_a_node_that_hangs_is_lost_and_stops_when_it_wakes(start: Callable[..., Launch]) -> None:
    launch = start(SLEEP, SLEEP, SLEEP, lost_after=10)
    launch.wait_until_joined()
    hanging = launch.server.supervisor(launch.ids[1])
    os.kill(hanging, signal.SIGSTOP)
    try:
        began = time.monotonic()
        ends = launch.end(0, 2)
        assert time.monotonic() - began < 10 + BOUND
        assert {end["lost_node"] for end in ends} == {1}
    finally:
        os.kill(hanging, signal.SIGCONT)
    (end,) = launch.end(1)
    assert "stopped because" in end["reason"]
    wait_until(launch.is_gone, "the end of the supervisors")


@pytest.mark.row(88, 158)
@pytest.mark.slow
@pytest.mark.parametrize("hanging", [0, 1])
def test_a_node_that_hangs_for_less_than_lost_after_is_not_lost(start: Callable[..., Launch], hanging: int) -> None:
    commands = ["sleep 13"] * 3
    launch = start(*commands)
    launch.wait_until_joined()
    supervisor = launch.server.supervisor(launch.ids[hanging])
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(heartbeat.RECONNECT_SECONDS + 2)
    os.kill(supervisor, signal.SIGCONT)
    assert [end["exit_code"] for end in launch.end(0, 1, 2)] == [0, 0, 0]
    wait_until(launch.is_gone, "the end of the supervisors")


@pytest.mark.row(88, 157)
@pytest.mark.slow
@pytest.mark.parametrize(("size", "milliseconds"), [(300, 160), (1100, 20)])
def test_a_launch_of_hundreds_of_nodes_joins_over_long_ways_and_goes_on(size: int, milliseconds: int) -> None:
    """For more than the eight seconds that a node has to connect again."""
    port = free_low_port()
    with contextlib.ExitStack() as stack, socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen(4096)
        stack.enter_context(far_nodes("proxy", milliseconds, port, proxy.fileno(), passing=proxy))
        first = stack.enter_context(far_nodes("watch", size, port, 0, 0))
        assert first.stdout.readline() == "started\n"
        parts = [(rank, min(rank + size // 4, size - 1)) for rank in range(1, size, size // 4 + 1)]
        there = proxy.getsockname()[1]
        others = [stack.enter_context(far_nodes("watch", size, there, *part)) for part in parts]
        assert [other.stdout.readline() for other in others] == ["started\n"] * len(others)
        time.sleep(heartbeat.RECONNECT_SECONDS + 2)
        ends = [json.loads(each.communicate(timeout=300)[0]) for each in (*others, first)]
    joined = [last - rank + 1 for rank, last in parts]
    assert ends == [{"joined": count, "gave up": []} for count in (*joined, 0)]


@pytest.mark.picked
@pytest.mark.row(157)
def test_all_nodes_of_a_large_launch_may_connect_before_one_of_them_is_known(tmp_path: Path) -> None:
    size, port, folder = 600, free_low_port(), os.open(tmp_path, os.O_RDONLY)
    place = {"servers": ["server"] * size, "address": "127.0.0.1", "port": port, "secret": "s" * 64}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends are in this process: the last ones have numbers above those that select() knows.
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, folder)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        node = make_watch(read_membership(place, 0, 1), folder)
        assert isinstance(node, FirstNodeWatch)
        for each in (node._listener, node._woken, node._wake):
            stack.enter_context(each)
        peers = []
        for _ in range(size):
            peers.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)))
            node._accept()
            node._drop_unknown()
        sessions = node._sessions()
        assert len(sessions) == size
        peers[0].sendall(b"\n")
        wait_until(lambda: node._wait(sessions, node._listener) == {sessions[0]}, "the first one's line")
        for session in sessions:
            session.close()


@pytest.mark.picked
@pytest.mark.row(88, 157)
@pytest.mark.slow
def test_a_node_has_joined_when_the_first_one_knows_it(tmp_path: Path) -> None:
    """Not at its greeting, which anybody could send and which it sends to everybody."""
    folder = os.open(tmp_path, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = {"servers": NAMES, "address": "127.0.0.1", "port": listener.getsockname()[1], "secret": "s" * 64}
        node = make_watch(read_membership(place, 1, 2), folder)
        assert isinstance(node, OtherNodeWatch)
        node.start()
        first = PeerSession(listener.accept()[0], b"s" * 64, 0)
        # The second beat comes long after it has read the greeting.
        for _ in range(2):
            wait_until(first.receive, "a beat")
        assert not node._joined.is_set()
        first.send({"beat": True})
        wait_until(node._joined.is_set, "the joining")
        first.send({"bye": True})
        node.leave()
        for each in (first, node._woken, node._wake):
            each.close()
    os.close(folder)


@pytest.mark.row(93, 157)
def test_a_first_node_that_may_not_open_enough_files_says_so(server: PretendServer, tmp_path: Path) -> None:
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -n 64\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    server.python = str(limited)
    watch = {"servers": ["server"] * 100, "address": "127.0.0.1", "port": free_low_port(), "secret": "s" * 64}
    (answer,) = server.call("start", jobs=[server.new_job(SLEEP, node_rank=0, watch=watch)])["jobs"]
    assert "100 nodes need 132 open files here, and `ulimit -Hn` allows 64" in answer["ended"]["reason"]


@contextlib.contextmanager
def far_nodes(*words: Any, passing: socket.socket | None = None) -> Iterator[Any]:
    """Run a part of a launch whose nodes are far from each other."""
    program = [sys.executable, "-m", "tests.extended.agent.launch.far_nodes", *map(str, words)]
    passed = () if passing is None else (passing.fileno(),)
    pipe = subprocess.PIPE
    with subprocess.Popen(program, pass_fds=passed, text=True, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.row(88)
def test_a_broken_connection_does_not_lose_the_node(start: Callable[..., Launch]) -> None:
    launch = start(UNTIL_GO, UNTIL_GO, UNTIL_GO)
    launch.wait_until_joined()
    node = launch.server.supervisor(launch.ids[1])
    # Shut down from outside, as a router that forgets a connection would.
    with borrow_connection(node, launch.port) as connection:
        before = connection.getsockname()[1]
        connection.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: own_port(node, launch.port) not in {0, before}, "another connection")
    launch.go()
    assert [end["exit_code"] for end in launch.end(0, 1, 2)] == [0, 0, 0]


@pytest.mark.row(88)
def test_nodes_that_succeed_leave_nothing_even_at_different_times(start: Callable[..., Launch]) -> None:
    launch = start("true", "sleep 1", "true")
    assert [end["exit_code"] for end in launch.end(0, 1, 2)] == [0, 0, 0]
    assert states_of(launch) == ["succeeded"] * 3
    wait_until(launch.is_gone, "the end of the supervisors")


@pytest.mark.row(88)
def test_the_first_failure_is_named_even_when_another_node_reports_first(start_patient: Callable[..., Launch]) -> None:
    error = json.dumps({"message": {"message": "ValueError: rank 3 had enough", "extraInfo": {}}})
    notes = f"d=.jobs/$REMOTE_TOOL_JOB_ID/ranks/x/attempt_0/1; mkdir -p $d; echo '{error}' > $d/error.json; {SLEEP}"
    later = "until [ -s .jobs/*/ranks/x/attempt_0/1/error.json ]; do sleep 0.1; done; sleep 1; exit 1"
    launch = start_patient(SLEEP, notes, later)
    ends = launch.end(0, 1, 2)
    assert "stopped because second (node 1) rank 3: ValueError: rank 3 had enough" in ends[0]["reason"]
    assert "first second (node 1) rank 3: ValueError: rank 3 had enough" in ends[2]["reason"]
    # Its command was ended, but neither because of another node nor by a signal that came from nowhere.
    assert states_of(launch) == ["failed"] * 3
    assert ends[1]["stopped_with_launch"] is False
    assert "stopped because" not in ends[1]["reason"]
    assert "ended by SIG" not in ends[1]["reason"]


def test_an_error_that_nests_without_end_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "run_x" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "error.json").write_text("[" * 500_000)
    membership = read_membership({"servers": NAMES, "address": "x", "port": 1, "secret": "s" * 32}, 1, 2)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        cause = find_rank_error(descriptor, membership)
    finally:
        os.close(descriptor)
    assert cause is not None
    assert cause.what == "rank 2: an error that cannot be read"


@pytest.mark.row(88, 23)
def test_a_node_that_the_user_kills_has_the_others_killed_with_the_same_grace(start: Callable[..., Launch]) -> None:
    slow = "trap 'sleep 5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    launch = start(SLEEP, SLEEP, slow)
    launch.wait_until_joined()
    launch.server.wait_for_output(launch.ids[2], "ready")
    launch.server.stop(launch.ids[1], grace=20)
    ends = launch.end(0, 1, 2)
    assert states_of(launch) == ["killed"] * 3
    # Longer than the grace after a failure.
    assert launch.server.output(launch.ids[2]) == "ready\nsaved\n"
    assert "stopped because second (node 1) was killed by the user" in ends[0]["reason"]


@pytest.mark.row(88, 104)
@pytest.mark.slow
def test_a_launch_that_is_only_half_started_ends_by_itself(tmp_path: Path, installed: Path) -> None:
    changes = {"agent/launch/heartbeat.py": {"JOIN_SECONDS = 60.0": "JOIN_SECONDS = 8.0"}}
    server = PretendServer(tmp_path / "home", changed_copy(installed, tmp_path / "impatient", changes))
    launch = Launch(server, SLEEP, SLEEP, SLEEP, only=2)
    ends = launch.end(0, 1)
    assert all("third (node 2) did not join the launch within 8 s" in end["reason"] for end in ends)
    server.clean()


@pytest.mark.picked
@pytest.mark.row(105, 88)
def test_a_client_without_the_secret_changes_nothing(start: Callable[..., Launch]) -> None:
    launch = start(UNTIL_GO, UNTIL_GO, UNTIL_GO)
    launch.wait_until_joined()
    stop = {"failed": Cause(1, "failed", "an attack").as_message(), "done": True}
    for secret in (b"x" * 64, b""):
        with socket.create_connection(("127.0.0.1", launch.port), 5) as connection:
            session = PeerSession(connection, secret, 1)
            session.send(stop)
            with pytest.raises(PeerClosed):
                hear_until_gone(session)
    for line in (b"\n", b"[]\n", b'{"rank": 0, "nonce": "x"}\n', b"\xff" * 9000, b"A" * 100_000):
        # The node may hang up before the last byte.
        with (
            socket.create_connection(("127.0.0.1", launch.port), 5) as connection,
            contextlib.suppress(ConnectionError),
        ):
            connection.sendall(line)
    launch.go()
    assert [end["exit_code"] for end in launch.end(0, 1, 2)] == [0, 0, 0]


def hear_until_gone(session: PeerSession) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        session.receive()
        session.flush()
        time.sleep(0.01)


@pytest.mark.row(111)
def test_the_secret_is_in_no_file_and_no_process_shows_it(start: Callable[..., Launch]) -> None:
    launch = start(f"{UNTIL_GO}; env", UNTIL_GO, UNTIL_GO)
    launch.wait_until_joined()
    secret = launch.secret.encode()
    for job in launch.ids:
        supervisor = launch.server.supervisor(job)
        assert read_of(supervisor, "environ")
        for pid in [supervisor, *launch.server.members(job)]:
            for name in ("cmdline", "environ"):
                assert secret not in read_of(pid, name)
    launch.go()
    launch.end(0, 1, 2)
    files = dict(contents_below(launch.server.home))
    assert files
    assert not [path for path, content in files.items() if secret in content]


@pytest.mark.row(93, 88)
def test_a_watch_port_that_is_taken_ends_the_start_with_its_name(server: PretendServer) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        watch = {"servers": NAMES[:2], "address": "127.0.0.1", "port": port, "secret": "s" * 64}
        job = server.new_job(SLEEP, node_rank=0, watch=watch)
        (answer,) = server.call("start", jobs=[job])["jobs"]
    assert f"127.0.0.1 port {port}: Address already in use" in answer["ended"]["reason"]


@pytest.mark.row(106)
@pytest.mark.parametrize(
    "fields",
    [
        {"rank": 3},
        {"rank": -1},
        {"rank": True},
        {"kind": "x"},
        {"what": 1},
        {"age": -1},
        {"age": float("nan")},
        {"signal": "SIGNOT"},
        {"grace": 1e9},
        {"grace": None},
    ],
)
def test_a_cause_of_another_node_is_checked(fields: dict[str, Any]) -> None:
    good = Cause(1, "failed", "ended with exit code 1").as_message()
    assert read_cause(good, 3) is not None
    assert read_cause({**good, **fields}, 3) is None
    assert read_cause(["rank"], 3) is None


def test_a_long_text_of_another_node_is_cut() -> None:
    cause = read_cause(Cause(1, "failed", "x" * 5000).as_message(), 3)
    assert cause is not None
    assert len(cause.what) == 300


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {"servers": "ab"},
        {"port": 0},
        {"port": "1"},
        {"secret": "short"},
        {"address": None},
        {"lost_after": 4},
        {"lost_after": 86_401},
        {"lost_after": True},
        {"lost_after": float("nan")},
    ],
)
def test_a_place_in_a_launch_is_checked(fields: Any) -> None:
    good = {"servers": NAMES, "address": "::1", "port": 1, "secret": "s" * 64}
    assert read_membership(good, 2, 4).name(2) == "third (node 2)"
    assert read_membership({**good, "lost_after": 20}, 2, 4).lost_after == 20
    with pytest.raises(ValueError, match="its launch membership"):
        read_membership({**good, **fields} if fields else fields, 2, 4)
    with pytest.raises(ValueError, match="its node rank"):
        read_membership(good, 3, 4)


def test_the_first_node_listens_on_the_cluster_address_only() -> None:
    with listen_on("127.0.0.1", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
