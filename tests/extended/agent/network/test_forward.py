"""The server's side of forwards, without SSH between."""

from __future__ import annotations

import socket
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.protocol import framing
from tests.extended.agent.conftest import Call, PretendServer, wait_for_text
from tests.sshd import free_low_port

if TYPE_CHECKING:
    from pathlib import Path

LISTEN_LATER = """
import socket, sys, time
sys.stdin.readline()
late = socket.create_server(("0.0.0.0", {port}))
chosen = socket.create_server(("127.0.0.1", 0))
open("chosen", "w").write(str(chosen.getsockname()[1]))
time.sleep(600)
"""


def say(call: Call, header: dict[str, Any], body: bytes = b"") -> None:
    call.stdin.write(framing.encode(call.nonce, header, body))
    call.stdin.flush()


def hear(call: Call, kind: str) -> framing.Frame:
    """Return the next frame of a kind; others are passed over."""
    while True:
        frame = call.next()
        assert frame is not None, "the program has ended"
        if kind in frame.header:
            return frame


def carries_both_ways(call: Call, number: int, place: dict[str, Any], listener: socket.socket) -> None:
    say(call, {"open": number, "to": place})
    say(call, {"data": number}, b"question")
    say(call, {"end": number})
    listener.settimeout(300)
    accepted, _ = listener.accept()
    with accepted:
        accepted.settimeout(300)
        assert accepted.recv(100) == b"question"
        assert accepted.recv(100) == b""
        accepted.sendall(b"answer")
    frame = hear(call, "data")
    assert (frame.header["data"], frame.body) == (number, b"answer")
    assert hear(call, "end").header == {"end": number}


@pytest.mark.row(212)
def test_a_port_and_a_socket_with_a_long_path_are_reached(server: PretendServer, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with server.open("forward") as call:
        hear(call, "ready")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            carries_both_ways(call, 1, {"host": "localhost", "port": listener.getsockname()[1]}, listener)
        with socket.socket(socket.AF_UNIX) as listener:
            short = tmp_path / "s"
            listener.bind(str(short))
            listener.listen()
            short.rename(folder / "s.sock")
            carries_both_ways(call, 3, {"path": str(folder / "s.sock")}, listener)
        say(call, {"open": 5, "to": {"path": str(folder / "gone.sock")}})
        assert hear(call, "reset").header == {"reset": 5, "why": "refused"}
        assert call.close() == 0


@pytest.mark.row(33)
def test_a_server_with_python_3_8_forwards(oldest: PretendServer) -> None:
    with oldest.open("forward") as call, socket.create_server(("127.0.0.1", 0)) as listener:
        hear(call, "ready")
        carries_both_ways(call, 1, {"host": "localhost", "port": listener.getsockname()[1]}, listener)
        assert call.close() == 0


@pytest.mark.row(213)
def test_a_reverse_forward_listens_for_this_user_alone_and_ends_with_its_client(
    server: PretendServer, tmp_path: Path
) -> None:
    port, path = free_low_port(), tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    places = [{"hosts": ["127.0.0.1"], "port": port}, {"path": str(path)}]
    with server.open("forward", listen=places) as call:
        hear(call, "ready")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        refused = server.call("forward", listen=[places[0]])
        assert refused["error"] == f"port {port} is in use on the server"
        assert f"{path} is in use" in server.call("forward", listen=[places[1]])["error"]
        addresses: list[Any] = [("127.0.0.1", port), str(path)]
        for number, address in enumerate(addresses):
            with socket.socket(socket.AF_UNIX if number else socket.AF_INET) as sock:
                sock.connect(address)
                sock.sendall(b"x")
                opened = hear(call, "open").header
                # The look whether the socket is in use was a connection too.
                while opened["to"] != number:
                    opened = hear(call, "open").header
                assert hear(call, "data").body == b"x"
                say(call, {"reset": opened["open"], "why": ""})
                sock.settimeout(300)
                # A Unix socket has no resets; the connection is over in any case.
                with suppress(ConnectionResetError):
                    assert sock.recv(1) == b""
        assert call.close() == 0
    assert not path.exists()
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="servers have /proc")
@pytest.mark.row(214)
def test_the_ports_of_a_job_and_its_end_are_reported(server: PretendServer) -> None:
    port = free_low_port()
    program = LISTEN_LATER.format(port=port).replace("sys.stdin.readline()", 'wait_for("go")')
    wait = "import os, time\ndef wait_for(name):\n    while not os.path.exists(name):\n        time.sleep(0.02)\n"
    job = server.start_python(wait + program)
    with server.open("forward", job=job) as call:
        assert hear(call, "ports").header == {"ports": [], "others": [], "elsewhere": False}
        (server.project / "go").touch()
        found = hear(call, "ports").header
        while not found["others"]:
            found = hear(call, "ports").header
        chosen = int(wait_for_text(server.project / "chosen"))
        assert (found["ports"], found["others"]) == ([["localhost", port]], [chosen])
        server.stop(job, grace=0.1)
        assert hear(call, "over").header == {"over": True}
        assert call.close() == 0
    with server.open("forward", job="20261121-053000-" + 32 * "0") as call:
        hear(call, "ready")
        assert "no such job" in hear(call, "error").header["error"]
