"""Files that go from one server to another: only to who has the key of the sync, only what its list says."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import stat
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.protocol import relay_files
from remote_tool.protocol.relay_files import RelayFile
from remote_tool.workflows.sync.relay_certificate import KeyPair, make_key_pair
from tests.extended.agent.conftest import PretendServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.extended.agent.conftest import Call

SECOND = 1_700_000_000
NAMES = ("a.py", "sub/deep/it's\n$(c).py", "empty", "large.bin")


@pytest.fixture
def pair() -> KeyPair:
    return make_key_pair()


@pytest.fixture
def other(tmp_path: Path, installed: Path) -> PretendServer:
    return PretendServer(tmp_path / "other", installed)


def write(server: PretendServer, name: str, content: bytes, mode: int = 0o640) -> RelayFile:
    """Write a file of a server's project, and return how the client's list has it."""
    path = server.project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    modified = SECOND * 10**9 + 5
    os.utime(path, ns=(modified, modified))
    return RelayFile(hashlib.sha256(content).hexdigest().encode(), mode, len(content), modified, os.fsencode(name))


@pytest.fixture
def entries(server: PretendServer) -> list[RelayFile]:
    contents = (b"print(1)\n", b"two\n", b"", os.urandom(700_000))
    return [write(server, name, content) for name, content in zip(NAMES, contents, strict=True)]


def keys(pair: KeyPair) -> dict[str, Any]:
    return {"certificate": pair.certificate, "key": pair.key}


@contextmanager
def sharing(
    server: PretendServer, pair: KeyPair, entries: list[RelayFile], address: str | None = None
) -> Iterator[tuple[Call, int]]:
    """Have a server hand on what a list says; yields the call and its port."""
    packed = relay_files.pack(entries)
    with server.open("share", list=base64.b64encode(packed).decode(), address=address, **keys(pair)) as call:
        frame = call.next()
        assert frame is not None
        assert "127.0.0.1" in frame.header["addresses"]
        yield call, frame.header["port"]


def open_fetch(server: PretendServer, pair: KeyPair, entries: list[RelayFile], port: int, **fields: Any) -> Call:
    digest = relay_files.digest_of(relay_files.pack(entries))
    return server.open("fetch", addresses=["127.0.0.1"], port=port, digest=digest, **keys(pair), **fields)


def fetch(server: PretendServer, pair: KeyPair, entries: list[RelayFile], port: int, **fields: Any) -> dict[str, Any]:
    """Ask as a sync does, whose stdin stays open; return the answer, with the names instead of bits."""
    with open_fetch(server, pair, entries, port, **fields) as call:
        answer = call.rest()[-1].header
    bits = bytes.fromhex(answer.pop("brought", ""))
    brought = [each for number, each in enumerate(entries) if bits and bits[number // 8] >> number % 8 & 1]
    return {**answer, "names": {os.fsdecode(each.name) for each in brought}}


def test_listed_files_arrive_as_listed(
    server: PretendServer, other: PretendServer, pair: KeyPair, entries: list[RelayFile]
) -> None:
    write(server, ".env", b"TOKEN=canary\n")
    with sharing(server, pair, entries) as (_, port):
        answer = fetch(other, pair, entries, port)
        assert answer == {"names": set(NAMES), "bytes": 700_013, "problem": ""}
        for name in NAMES:
            here, there = server.project / name, other.project / name
            assert here.read_bytes() == there.read_bytes()
            assert stat.S_IMODE(there.stat().st_mode) == 0o640
            assert there.stat().st_mtime_ns == SECOND * 10**9 + 5
        assert not (other.project / ".env").exists()
        assert list((other.scripts / "partial").iterdir()) == []
        assert fetch(other, pair, entries, port)["names"] == set()


def test_what_differs_as_rsync_compares_is_brought_and_with_checksum_by_what_it_holds(
    server: PretendServer, other: PretendServer, pair: KeyPair, entries: list[RelayFile]
) -> None:
    write(other, "a.py", b"print(2)\n")
    with sharing(server, pair, entries[:1]) as (_, port):
        assert fetch(other, pair, entries[:1], port)["names"] == set()
        os.utime(other.project / "a.py", (SECOND, SECOND))
        assert fetch(other, pair, entries[:1], port)["names"] == set()
        assert fetch(other, pair, entries[:1], port, checksum=True)["names"] == {"a.py"}
        os.utime(other.project / "a.py", ns=(0, SECOND * 10**9 + 6))
        assert fetch(other, pair, entries[:1], port)["names"] == {"a.py"}
    assert (other.project / "a.py").read_bytes() == b"print(1)\n"


def test_it_ends_with_its_client_and_its_port_with_it(
    server: PretendServer, pair: KeyPair, entries: list[RelayFile]
) -> None:
    with sharing(server, pair, entries) as (call, port):
        connection = socket.create_connection(("127.0.0.1", port))
        assert call.close() == 0
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.row(111)
def test_the_key_is_on_no_disk_and_in_no_command_line(
    server: PretendServer, pair: KeyPair, entries: list[RelayFile]
) -> None:
    secret = pair.key.splitlines()[1].encode()
    with sharing(server, pair, entries) as (call, _):
        process = Path(f"/proc/{call.process.pid}")
        assert secret not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        files = [path for path in server.home.rglob("*") if path.is_file()]
        assert [path for path in files if secret in path.read_bytes()] == []
    assert pair.key not in repr(pair)


def strangers_context(pair: KeyPair | None, tmp_path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if pair is not None:
        (tmp_path / "pair.pem").write_text(pair.certificate + pair.key)
        context.load_cert_chain(tmp_path / "pair.pem")
    return context


@pytest.mark.picked_case("True")
@pytest.mark.row(105, 106)
@pytest.mark.parametrize("with_certificate", [False, True])
def test_a_stranger_gets_nothing_and_can_send_nothing(
    server: PretendServer, other: PretendServer, pair: KeyPair, entries: list[RelayFile], tmp_path: Path,
    *, with_certificate: bool,
) -> None:  # fmt: skip
    context = strangers_context(make_key_pair() if with_certificate else None, tmp_path)
    with sharing(server, pair, entries) as (_, port), ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=15))
        plain.sendall(b"\0" * 100)
        with suppress(ConnectionResetError):
            # An alert of TLS at most.
            assert len(plain.recv(100)) < 10
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=15))
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            # In TLS 1.3 the refusal comes after our part of the handshake.
            stack.enter_context(context.wrap_socket(connection)).recv(1)
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=15))
        # Nobody waits for the silent one.
        assert fetch(other, pair, entries, port)["names"] == set(NAMES)
        silent.close()


@pytest.mark.picked
@pytest.mark.row(105)
def test_where_an_address_is_configured_no_other_one_listens(
    server: PretendServer, pair: KeyPair, entries: list[RelayFile]
) -> None:
    with sharing(server, pair, entries, "127.0.0.2") as (_, port):
        socket.create_connection(("127.0.0.2", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    # An address of a router in front of it, from the range for examples.
    with sharing(server, pair, entries, "192.0.2.1") as (_, port):
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_server_without_the_key_is_not_accepted_as_a_source(
    server: PretendServer, other: PretendServer, pair: KeyPair, entries: list[RelayFile]
) -> None:
    with sharing(server, make_key_pair(), entries) as (_, port):
        answer = fetch(other, pair, entries, port)
    assert answer["error"] == f"another program answers on port {port} of 127.0.0.1"
    assert answer["names"] == set()


@pytest.mark.row(106)
def test_nothing_is_taken_that_is_not_what_the_client_has(
    server: PretendServer, other: PretendServer, pair: KeyPair, entries: list[RelayFile]
) -> None:
    (server.project / "a.py").write_bytes(b"print(6)\n")
    (server.project / "empty").write_bytes(b"longer")
    (server.project / "large.bin").unlink()
    (server.project / "large.bin").symlink_to(server.project / "a.py")
    with sharing(server, pair, entries) as (_, port):
        answer = fetch(other, pair, entries, port)
        assert answer == {"names": {NAMES[1]}, "bytes": 4, "problem": ""}
        assert not (other.project / "a.py").exists()
        other_list = fetch(other, pair, entries[1:], port)
    assert other_list["problem"] == "its list of files is not the one of this sync"


@pytest.mark.picked
@pytest.mark.row(109)
def test_nothing_is_written_through_a_link_or_over_a_folder(
    server: PretendServer, other: PretendServer, pair: KeyPair, entries: list[RelayFile], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (other.project / "sub").symlink_to(outside)
    (other.project / "a.py").mkdir()
    with sharing(server, pair, entries) as (_, port):
        assert fetch(other, pair, entries, port)["names"] == {"empty", "large.bin"}
    assert list(outside.iterdir()) == []
    assert list((other.scripts / "partial").iterdir()) == []


@pytest.mark.row(109)
@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a//b", "./a", "sub/../../x", ""])
def test_a_list_that_leads_out_of_the_project_is_refused(server: PretendServer, pair: KeyPair, name: str) -> None:
    packed = relay_files.pack([RelayFile(b"0" * 64, 0o600, 1, 1, name.encode())])
    answer = server.call("share", list=base64.b64encode(packed).decode(), **keys(pair))
    assert answer["error"] == "The list of files contains paths outside the project"


def test_an_invalid_key_is_a_readable_error(server: PretendServer, pair: KeyPair) -> None:
    answer = server.call("share", list="", certificate=pair.certificate, key="nonsense")
    assert answer["error"].startswith("Cannot use the certificate of this sync")


def test_a_fetch_ends_with_its_client(server: PretendServer, pair: KeyPair, entries: list[RelayFile]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        call = open_fetch(server, pair, entries, listener.getsockname()[1])
        silent, _ = listener.accept()
        call.stdin.close()
        # Without an answer: by itself, it would tell that nobody answers in time.
        assert call.rest() == []
        silent.close()
        call.close()


def test_a_fetch_that_reaches_nobody_fails_soon(server: PretendServer, pair: KeyPair, entries: list[RelayFile]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        answer = fetch(server, pair, entries, port)
    assert answer["error"] == f"127.0.0.1:{port}: Connection refused"
