"""Terminals of jobs, on this Python and on the oldest one: clients that come, go, and do not read."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.proc.processes import descriptors
from remote_tool.agent.terminal.client import Client
from remote_tool.agent.terminal.terminal import Terminal
from remote_tool.protocol.framing import FrameReader
from remote_tool.protocol.terminal import ALL_OFF, BACKLOG_LIMIT, INPUT, SOCKET, message, window_message
from tests.extended.agent.conftest import PATIENCE, PretendServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.extended.agent.conftest import Call

OLDEST = os.environ.get("REMOTE_TOOL_PYTHON38", "python3.8")
# More than a client may be behind, and than all pipes between take.
LINES = 400_000


@pytest.fixture(params=["this", "oldest"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, installed: Path) -> Iterator[PretendServer]:
    """A server with this Python, and one with the oldest."""
    python = None
    if request.param == "oldest":
        try:
            found = subprocess.run(
                [OLDEST, "-c", "import sys; print(sys.executable)"], check=True, capture_output=True, text=True
            )
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no python3.8 on PATH, and REMOTE_TOOL_PYTHON38 names none")
        python = found.stdout.strip()
    pretend = PretendServer(tmp_path / "home", installed, *([python] if python else []))
    yield pretend
    pretend.clean()


def send(call: Call, data: bytes) -> None:
    call.stdin.write(data)
    call.stdin.flush()


def until(call: Call, text: bytes) -> bytes:
    """Read output until a text has come."""
    output = b""
    deadline = time.monotonic() + PATIENCE
    while text not in output:
        assert time.monotonic() < deadline, output[-2000:]
        frame = call.next()
        assert frame is not None, output[-2000:]
        output += frame.body
    return output


def end_of(call: Call) -> dict[str, Any]:
    """Return what the last word says of the end."""
    return next(frame.header for frame in call.rest() if "exit_code" in frame.header)


def attach(machine: PretendServer, job_id: str, **fields: Any) -> Call:
    call = machine.open("attach", job=job_id, **fields)
    first = call.next()
    assert first is not None
    assert first.header == {"attached": True}
    return call


def sockets_of(pid: int) -> int:
    return sum(target.startswith("socket:") for target in descriptors(pid).values())


@pytest.mark.row(206)
def test_clients_come_and_go_and_the_job_has_its_size_and_its_end(machine: PretendServer) -> None:
    job_id = machine.start("while read word; do echo $word $(stty size); done; exit 5", terminal="command")
    with attach(machine, job_id) as first, attach(machine, job_id) as second:
        send(first, window_message(10, 20))
        send(first, message(INPUT, b"one\r"))
        until(second, b"one 10 20")
        send(second, window_message(30, 40) + message(INPUT, b"two\r"))
        until(first, b"two 30 40")
        second.close()

        def is_old_size() -> bool:
            send(first, message(INPUT, b"three\r"))
            return b"10 20" in until(first, b"three ")

        wait_until(is_old_size, "the size of the one who is left")
        send(first, message(INPUT, b"\x04"))
        assert end_of(first) == {"exit_code": 5, "signal": None}
    assert not (machine.jobs / job_id / SOCKET).exists()
    assert "has ended" in machine.call("attach", job=job_id)["error"]


@pytest.mark.row(208)
def test_a_client_that_does_not_read_is_dropped_and_the_log_has_all(machine: PretendServer) -> None:
    job_id = machine.start(f"read go; seq {LINES}; read go; exit 3", terminal="command")
    with attach(machine, job_id) as idle, attach(machine, job_id) as reader:
        send(reader, message(INPUT, b"go\r"))
        log = machine.jobs / job_id / "job.out"
        # One that is late but reads is shown the end.
        until(reader, b"\n%d\r\n" % LINES)
        wait_until(lambda: log.read_bytes().endswith(b"\n%d\r\n" % LINES), "the whole log")
        # Nothing was lost, and it did not wait for the one who does not read.
        assert log.read_bytes() == b"go\r\n" + b"".join(b"%d\r\n" % number for number in range(1, LINES + 1))
        # The listener, and the one who reads.
        wait_until(lambda: sockets_of(machine.supervisor(job_id)) == 2, "that the other one is dropped")
        send(reader, message(INPUT, b"go\r"))
        assert end_of(reader)["exit_code"] == 3
        idle.close()
    assert machine.wait(job_id)[job_id]["exit_code"] == 3


@pytest.mark.row(236)
def test_who_comes_back_gets_the_output_that_was_missed(machine: PretendServer) -> None:
    job_id = machine.start("echo one; while read line; do seq $line; done", terminal="command")
    with attach(machine, job_id) as first:
        before = until(first, b"one\r\n")
        send(first, message(INPUT, b"3\r"))
        whole = before + until(first, b"3\r\n1\r\n2\r\n3\r\n")
    with attach(machine, job_id, seen=len(before)) as again:
        # Exactly the bytes that are missing, also if there are none.
        assert until(again, b"2\r\n3\r\n") == whole[len(before) :]
        with attach(machine, job_id, seen=len(whole)) as third:
            send(third, message(INPUT, b"1\r"))
            until(again, b"1\r\n1\r\n")
            assert until(third, b"1\r\n1\r\n") == b"1\r\n1\r\n"
        send(again, message(INPUT, b"90000\r"))
        until(again, b"\r\n90000\r\n")
    with attach(machine, job_id, seen=len(whole)) as late:
        # More than is remembered: the screen begins anew, as nobody knows what it is like.
        frame = late.next()
        assert frame is not None
        assert frame.header["at"] > len(whole)
        assert frame.body.startswith(ALL_OFF)
        assert frame.body.endswith(b"\r\n90000\r\n")
        send(late, message(INPUT, b"\x04"))
        assert end_of(late)["exit_code"] == 0


@pytest.mark.row(237)
def test_the_end_of_a_client_is_noticed_while_the_program_reads_no_input(machine: PretendServer) -> None:
    job_id = machine.start("stty raw -echo; echo ready; exec sleep 1000", terminal="command")
    with attach(machine, job_id) as client:
        until(client, b"ready")
        number = client.stdin.fileno()
        os.set_blocking(number, False)
        text, blocked = memoryview(message(INPUT, bytes(60_000)) * 50), 0
        # Until everything between is full.
        while text and blocked < 20:
            try:
                text = text[os.write(number, text) :]
                blocked = 0
            except BlockingIOError:
                blocked += 1
                select.select([], [number], [], 0.05)
        assert text, "the program reads nothing"
        assert client.close() == 0
        wait_until(lambda: sockets_of(machine.supervisor(job_id)) == 1, "that the supervisor drops it")


def test_a_process_without_free_descriptors_waits_for_one(tmp_path: Path) -> None:
    # In a process of its own, for the limit.
    done = subprocess.run([sys.executable, "-c", SHORT_OF_DESCRIPTORS, str(tmp_path)], check=False, timeout=300)
    assert done.returncode == 0


SHORT_OF_DESCRIPTORS = """
import os, resource, select, socket, sys, time
from remote_tool.agent.terminal.recording import Recording
from remote_tool.agent.terminal.terminal import Terminal
from remote_tool.protocol.terminal import NONCE, message
output, sink = os.pipe(), os.pipe()
terminal = Terminal({output[0]: 1}, sink[1], recording=Recording(os.open("/dev/null", os.O_WRONLY)))
terminal.listen(os.open(sys.argv[1], os.O_RDONLY))
client = socket.socket(socket.AF_UNIX)
poll = select.poll()
poll.register(client, select.POLLIN)
spare = []
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
try:
    while True:
        spare.append(os.dup(0))
except OSError:
    pass
terminal.start()
client.connect(f"{sys.argv[1]}/terminal")
client.sendall(message(NONCE, b"0123456789abcdef"))
used = time.process_time()
assert not poll.poll(3000), "it was accepted although no descriptor was free"
used = time.process_time() - used
assert used < 1.0, f"{used:.2f} s of CPU in 3 s"
for each in spare:
    os.close(each)
assert poll.poll(60000), "it was not accepted later"
"""


def test_a_program_without_a_log_waits_for_its_client_and_loses_nothing() -> None:
    output, sink, keys, screen = (os.pipe() for _ in range(4))
    os.set_blocking(output[0], False)
    nonce, size = "0123456789abcdef", 8 * BACKLOG_LIMIT
    client = Client(keys[0], screen[1], lambda: os.close(screen[1]), nonce)
    terminal = Terminal({output[0]: 1}, sink[1])
    terminal.serve_alone(client, (24, 80), lambda: None)
    terminal.start()

    def write() -> None:
        with os.fdopen(output[1], "wb") as stream:
            stream.write(bytes(size))
        terminal.drain()
        terminal.finish({"exit_code": 3})

    program = threading.Thread(target=write, daemon=True)
    program.start()
    wait_until(lambda: client.backlog > BACKLOG_LIMIT, "that the client is far behind")
    with os.fdopen(screen[0], "rb") as stream:
        frames = FrameReader(nonce).feed(stream.read())
    program.join(PATIENCE)
    for descriptor in (output[0], *sink, *keys):
        os.close(descriptor)
    assert b"".join(frame.body for frame in frames) == bytes(size)
    assert [frame.header["exit_code"] for frame in frames if "exit_code" in frame.header] == [3]


def test_a_sigkill_of_the_supervisor_hangs_up(machine: PretendServer) -> None:
    job_id = machine.start("echo begun; exec sleep 1000", terminal="command")
    with attach(machine, job_id) as client:
        until(client, b"begun")
        os.kill(machine.supervisor(job_id), signal.SIGKILL)
        wait_until(lambda: not machine.members(job_id), "the hang-up")
        client.rest()
