"""Measuring between two pretend servers: what is measured, who is refused, and that everything ends."""

from __future__ import annotations

import os
import select
import shutil
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.network import bandwidth, iperf, tcp_streams
from tests.extended.agent.conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from tests.extended.agent.conftest import Call

SECRET = "s3cret"
SHORT = 0.5
needs_iperf = pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")


@pytest.fixture
def other(tmp_path: Path, installed: Path) -> PretendServer:
    return PretendServer(tmp_path / "other", installed)


def listen(server: PretendServer, seconds: float = SHORT) -> tuple[Call, int]:
    call = server.open("bandwidth_listen", secret=SECRET, seconds=seconds)
    frame = call.next()
    assert frame is not None
    return call, frame.header["port"]


def ask(port: int, secret: str = SECRET, seconds: float = SHORT, **fields: Any) -> dict[str, Any]:
    return {"candidates": ["127.0.0.1"], "port": port, "secret": secret, "seconds": seconds, **fields}


def test_both_directions_and_the_round_trip_are_measured(server: PretendServer, other: PretendServer) -> None:
    call, port = listen(server)
    with call:
        answer = other.call("bandwidth_connect", **ask(port, candidates=["name.invalid", "127.0.0.1"]))
    assert 1e7 < answer.pop("there") < 1e13
    assert 1e7 < answer.pop("back") < 1e13
    assert 0 < answer.pop("round_trip") < 5
    assert answer == {"address": "127.0.0.1", "interface": "lo", "peer_interface": "lo", "method": "own"}


@needs_iperf
@pytest.mark.slow
def test_iperf3_measures_where_both_have_it(server: PretendServer, other: PretendServer) -> None:
    call, port = listen(server)
    with call:
        answer = other.call("bandwidth_connect", **ask(port, iperf3=True))
    assert answer["method"] == "iperf3"
    assert 1e7 < answer["there"] < 1e13
    assert 1e7 < answer["back"] < 1e13


def test_an_iperf3_that_fails_is_replaced(server: PretendServer, other: PretendServer, tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "iperf3"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\necho \'{"error": "broken"}\'; exit 1\n')
    broken.chmod(0o755)
    call, port = listen(server)
    login = {"PATH": f"{broken.parent}:{os.environ['PATH']}"}
    with call, other.open("bandwidth_connect", login=login, **ask(port, iperf3=True)) as asked:
        (frame,) = asked.rest()
    assert frame.header["method"] == "own"
    assert frame.header["there"] > 1e7


def test_a_client_without_the_secret_measures_nothing(server: PretendServer, other: PretendServer) -> None:
    call, port = listen(server)
    with call:
        refused = other.call("bandwidth_connect", **ask(port, secret="another"))
        assert refused["error"].startswith(f"port {port} cannot be reached (127.0.0.1: ")
        assert "there" in other.call("bandwidth_connect", **ask(port))


def push(connection: socket.socket) -> None:
    for _ in range(1000):
        connection.sendall(bytes(65536))


@pytest.mark.row(105)
def test_an_untrusted_peer_gets_no_answer_and_its_data_is_ignored(server: PretendServer) -> None:
    call, port = listen(server, seconds=5)
    with call, socket.create_connection(("127.0.0.1", port), 10) as stranger:
        stranger.sendall(bytes(64))
        assert len(tcp_streams.read_exactly(stranger, 32)) == 32
        assert stranger.recv(1) == b""
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            push(stranger)


@pytest.mark.row(105)
def test_a_mirrored_proof_is_refused(server: PretendServer) -> None:
    call, port = listen(server, seconds=5)
    with call, socket.create_connection(("127.0.0.1", port), 10) as mirror:
        mirror.sendall(tcp_streams.read_exactly(mirror, 32) * 2)
        assert mirror.recv(1) == b""


def test_an_answer_from_another_program_is_refused(server: PretendServer) -> None:
    with socket.socket() as liar:
        liar.bind(("127.0.0.1", 0))
        liar.listen()
        port = liar.getsockname()[1]
        with server.open("bandwidth_connect", **ask(port)) as call:
            taken, _ = liar.accept()
            with taken:
                taken.sendall(bytes(64))
                frame = call.next()
                assert frame is not None
                # The proof for these numbers, and not the secret.
                assert len(tcp_streams.read_exactly(taken, 64)) == 64
    assert "another program answers there" in frame.header["error"]


@pytest.mark.parametrize("program", ["own", pytest.param("iperf3", marks=needs_iperf)])
def test_both_sides_end_with_their_clients(server: PretendServer, other: PretendServer, program: str) -> None:
    call, port = listen(server, seconds=50)
    asked = other.open("bandwidth_connect", **ask(port, seconds=50, iperf3=program == "iperf3"))
    if program == "iperf3":
        wait_until(lambda: len(programs_of(call, asked)) == 2, "iperf3 on both sides")
    else:
        wait_until(lambda: carries(port), "the streams")
    for each in (asked, call):
        left = programs_of(each)
        began = time.monotonic()
        each.close()
        assert time.monotonic() - began < 30
        wait_until(partial(are_gone, left), "the end of iperf3")


def are_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def programs_of(*calls: Call) -> list[int]:
    """Return the programs that the control programs have started."""
    parents = {call.process.pid for call in calls}
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if entry.name.isdigit() and int(fields[1]) in parents:
            found.append(int(entry.name))
    return found


def carries(port: int) -> bool:
    """Whether several connections to a port are open."""
    wanted = f":{port:04X}"
    lines = [*Path("/proc/net/tcp").read_text().splitlines(), *Path("/proc/net/tcp6").read_text().splitlines()]
    return sum(wanted in line.split()[1] and line.split()[3] == "01" for line in lines) > tcp_streams.STREAMS


def never_gone(seconds: float, *wakers: int) -> bool:
    select.select(wakers, [], [], seconds)
    return False


def test_a_listener_whose_client_never_goes_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_SPARE_SECONDS", 0.3)
    monkeypatch.setattr(bandwidth, "client_is_gone", never_gone)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        began = time.monotonic()
        bandwidth._Listening(listener, b"secret", 0.1).serve()
    # Else 40 s longer.
    assert 0.4 < time.monotonic() - began < 30


def test_a_silent_other_side_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_streams, "_LONGER", 0.2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        began = time.monotonic()
        counted = tcp_streams.take(ours, 0.1)
        tcp_streams.send(theirs, 0.1)
    assert time.monotonic() - began < 5
    assert tcp_streams.bits_per_second([counted]) == 0


def test_streams_are_counted_together() -> None:
    counted = [tcp_streams.Counted(100, 1.0, 3.0), tcp_streams.Counted(50, 1.5, 2.0)]
    assert tcp_streams.bits_per_second(counted) == 8 * 150 / 2
    assert tcp_streams.bits_per_second([tcp_streams.Counted(0, 1.0, 1.0)]) == 0


def test_output_of_iperf3_is_not_trusted() -> None:
    assert iperf._parse(b"\xff[]") == {}
    assert iperf._parse(b"[1]") == {}
