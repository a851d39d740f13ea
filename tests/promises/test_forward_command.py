"""forward, as a person uses it: over servers that allow no forwarding of their own."""

from __future__ import annotations

import http.client
import http.server
import json
import signal
import socket
import threading
import urllib.request
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from tests.forwarding import Forwarding, agents_in
from tests.program import remote_tool
from tests.project import kill, make_project, start
from tests.promises.conftest import until
from tests.sshd import TestServer, free_low_port, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers with a megabyte and more, so that windows are used up, or with much more than any buffer takes."""

    DATA = bytes(range(256)) * 12345
    MUCH = DATA * 10

    def do_GET(self) -> None:
        """Answer."""
        data = self.MUCH if self.path == "/much" else self.DATA
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def web() -> Iterator[int]:
    """A web server on loopback."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[TestServer]:
    """A server that forwards nothing itself."""
    folder = tmp_path_factory.mktemp("closed") / "gpu1"
    with TestServer("gpu1", folder, ssh_key, {"AllowTcpForwarding": "no", "AllowStreamLocalForwarding": "no"}) as it:
        yield it


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, closed: TestServer) -> Path:
    root = make_project(tmp_path_factory.mktemp("forward") / "project", [closed])
    prepared = remote_tool("prepare", cwd=root, timeout=110)
    assert prepared.returncode == 0, prepared.stderr
    return root


def fetch(port: int) -> bytes:
    with urllib.request.urlopen(f"http://localhost:{port}/", timeout=300) as answer:
        data: bytes = answer.read()
        return data


def is_served(port: int) -> bool:
    """Whether the page is there; on a slow machine, a port of the server is not open again at once."""
    try:
        return fetch(port) == Answer.DATA
    except (OSError, http.client.HTTPException):
        return False


def port_in(line: str) -> int:
    """The port that a line begins with."""
    return int(line.partition(" ")[0].rpartition(":")[2])


@pytest.mark.row(211, 212, 213)
def test_ports_are_forwarded_where_the_server_allows_none_and_nothing_is_left(
    workspace: Path, closed: TestServer, web: int
) -> None:
    nothing = free_port()
    with Forwarding(f"{web}:localhost:{web}", f"0:{nothing}", cwd=workspace) as forwarding:
        line = forwarding.wait_for(f"-> localhost:{web} on gpu1")
        # The port is that of the web server here too.
        assert f"(port {web} here is not free)" in line
        assert fetch(port_in(line)) == Answer.DATA
        # Another address of this machine.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port_in(line)))
        dead = port_in(forwarding.wait_for(f"-> localhost:{nothing} on gpu1"))
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", dead)) as sock, pytest.raises(ConnectionResetError):
                sock.recv(1)
        assert forwarding.stop() == 130
        said = [line for line in forwarding.lines if "nothing listens" in line]
        assert said == [f"nothing listens on localhost:{nothing} on gpu1"]
        assert forwarding.lines[-1] == "interrupted; the ports are closed"
    until(lambda: agents_in(closed) == [], "nothing is left on the server")
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(("127.0.0.1", dead))


@pytest.mark.row(212)
def test_a_connection_that_nobody_reads_delays_no_other_and_gets_all_later(workspace: Path, web: int) -> None:
    with Forwarding(f"0:{web}", cwd=workspace) as forwarding, ExitStack() as stack:
        port = port_in(forwarding.wait_for("-> "))
        unread = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        unread.sendall(b"GET /much HTTP/1.0\r\n\r\n")
        for _ in range(3):
            assert fetch(port) == Answer.DATA
        answer = stack.enter_context(unread.makefile("rb")).read()
        assert answer.partition(b"\r\n\r\n")[2] == Answer.MUCH
        assert forwarding.stop() == 130


@pytest.mark.row(213)
def test_after_a_lost_connection_it_reconnects_and_keeps_the_port(
    workspace: Path, closed: TestServer, web: int
) -> None:
    with Forwarding(f"0:localhost:{web}", cwd=workspace) as forwarding:
        port = port_in(forwarding.wait_for("-> "))
        assert fetch(port) == Answer.DATA
        with socket.create_connection(("127.0.0.1", port), timeout=60) as held:
            held.sendall(b"GET")
            closed.drop_connections()
            # What it had before is no end of an answer.
            with pytest.raises(ConnectionResetError):
                held.recv(1)
        forwarding.wait_for("reconnecting")
        # It waits for the server.
        assert fetch(port) == Answer.DATA
        forwarding.wait_for("is answering again")
        assert forwarding.stop(signal.SIGTERM) == 143
    until(lambda: agents_in(closed) == [], "nothing is left on the server")


@pytest.mark.row(211, 213)
def test_a_reverse_forward_survives_a_lost_connection(workspace: Path, closed: TestServer, web: int) -> None:
    there, path = free_port(), closed.home / "s.sock"
    with Forwarding("--reverse", f"{there}:{web}", f"~/s.sock:{web}", cwd=workspace) as forwarding:
        forwarding.wait_for(f"localhost:{there} on gpu1 -> localhost:{web}")
        assert fetch(there) == Answer.DATA
        closed.drop_connections()
        forwarding.wait_for("reconnecting")
        until(lambda: is_served(there), "the page is there again", 60)
        with Forwarding(f"0:{path}", cwd=workspace) as back:
            here = port_in(back.wait_for("-> "))
            until(lambda: is_served(here), "the page is here", 60)
            assert back.stop() == 130
        refused = remote_tool("forward", "--reverse", str(there), cwd=workspace)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"port {there} is in use on the server" in refused.stderr
        assert forwarding.stop() == 130
    until(lambda: agents_in(closed) == [] and not path.exists(), "nothing is left on the server")


@pytest.mark.row(214)
def test_the_ports_of_a_job_are_forwarded_until_it_ends(workspace: Path) -> None:
    with ExitStack() as stack:
        port = free_low_port()
        job = start(workspace, f"exec python -m http.server {port} --bind 127.0.0.1", server="gpu1")
        stack.callback(kill, workspace, job)
        forwarding = stack.enter_context(Forwarding("--job", str(job.key), cwd=workspace))
        here = port_in(forwarding.wait_for(f"-> localhost:{port} on gpu1"))
        assert b"Directory listing" in fetch(here)
        kill(workspace, job)
        assert forwarding.process.wait(60) == 0
        forwarding.wait_for(f"job {job.key} has ended; its ports are closed")
    ended = remote_tool("forward", "--job", str(job.key), cwd=workspace)
    assert ended.returncode == 2
    assert f"error: Job {job.key} has ended" in ended.stderr


def test_json_has_the_ports_and_errors_name_the_next_command(workspace: Path, web: int) -> None:
    with Forwarding("--json", f"0:{web}", cwd=workspace) as forwarding:
        forwarding.wait_for("}")
        until(lambda: forwarding.lines[-1] == "}", "the document is whole")
        document = json.loads("\n".join(forwarding.lines))
        (found,) = document["forwards"]
        assert fetch(found["port"]) == Answer.DATA
        assert (found["server"], found["target"], found["reverse"]) == ("gpu1", f"localhost:{web}", False)
        forwarding.stop()
    for words, error in (
        ((), "No port to forward"),
        (("70000",), "70000 in '70000' is not a port"),
        (("--job", "999"), "No job '999'"),
        (("6006", "--server", "gpu9"), "Unknown server 'gpu9'"),
    ):
        refused = remote_tool("forward", *words, cwd=workspace)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"error: {error}" in refused.stderr


def test_one_unreachable_server_of_two_is_reported_and_the_other_works(away: Path, web: int) -> None:
    with Forwarding(f"0:{web}", cwd=away) as forwarding:
        forwarding.wait_for("away: ")
        assert fetch(port_in(forwarding.wait_for("on first"))) == Answer.DATA
        assert forwarding.stop() == 130
