"""Whether the processes below this one have met others (row 179)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.launch import rendezvous
from remote_tool.agent.launch.rendezvous import RendezvousCheck
from remote_tool.agent.proc.sockets import TcpSocket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.row(179)

# What is told by its name, torch, is a file that the process has mapped.
RANK = """
import mmap, os, socket, sys
library = open(sys.argv[1], "rb")
mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
for port in sys.argv[2:]:
    connection = socket.create_connection(("127.0.0.1", int(port)))
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(rendezvous, "ALONE_SECONDS", 0.0)


@contextmanager
def a_rank(library: Path, store: socket.socket, *ports: int, **variables: str) -> Iterator[None]:
    library.write_bytes(b"x")
    words = [sys.executable, "-c", RANK, str(library), *map(str, ports)]
    place = {"MASTER_PORT": str(store.getsockname()[1]), **variables}
    with subprocess.Popen(words, env={**os.environ, **place}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield


def look_twice(met: RendezvousCheck) -> None:
    met.check_if_due()
    met.check_if_due()


def test_a_rank_without_a_connection_to_the_store_has_not_met_others(tmp_path: Path, store: socket.socket) -> None:
    met = RendezvousCheck()
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        with a_rank(tmp_path / "libtorch_cpu.so", store, elsewhere.getsockname()[1]):
            look_twice(met)
        assert met.missed()


def test_a_rank_that_holds_a_connection_to_the_store_has_met_others(tmp_path: Path, store: socket.socket) -> None:
    met = RendezvousCheck()
    with a_rank(tmp_path / "libtorch_cpu.so", store, store.getsockname()[1]):
        look_twice(met)
    assert not met.missed()


def test_a_connection_to_the_store_of_after_the_last_look_counts(tmp_path: Path, store: socket.socket) -> None:
    met = RendezvousCheck()
    with a_rank(tmp_path / "libtorch_cpu.so", store):
        look_twice(met)
        with a_rank(tmp_path / "libtorch_cpu.so", store, store.getsockname()[1]):
            pass
    assert not met.missed()


def test_who_tried_the_port_before_and_torchruns_own_connection_do_not_count(
    tmp_path: Path, store: socket.socket
) -> None:
    where = store.getsockname()
    socket.create_connection(where).close()
    met = RendezvousCheck()
    with socket.create_connection(where), a_rank(tmp_path / "libtorch_cpu.so", store):
        look_twice(met)
    assert met.missed()


@pytest.mark.parametrize(
    ("library", "variables"), [("libother.so", {}), ("libtorch_cpu.so", {"OMPI_COMM_WORLD_RANK": "0"})]
)
def test_other_programs_are_not_reported_as_alone(
    tmp_path: Path, store: socket.socket, library: str, variables: dict[str, str]
) -> None:
    met = RendezvousCheck()
    with a_rank(tmp_path / library, store, **variables):
        look_twice(met)
    assert not met.missed()


def test_a_short_job_is_not_reported_as_alone(
    tmp_path: Path, store: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "ALONE_SECONDS", 20.0)
    met = RendezvousCheck()
    with a_rank(tmp_path / "libtorch_cpu.so", store):
        look_twice(met)
    assert not met.missed()


@pytest.mark.parametrize(
    ("local", "remote", "is_one"),
    [
        ("0A000001:9000", "0A000002:9000", True),
        ("0A000001:9000", "0A000001:9000", False),
        ("0100007F:9000", "0101007F:9000", False),
        ("0000000000000000FFFF00000100007F:9000", "0000000000000000FFFF00000101007F:9000", False),
        ("000080FE000000000000000001000000:9000", "000080FE00000000000000000200007F:9000", True),
        ("0A000001:9000", "08080808:01BB", False),
    ],
)
def test_a_connection_that_leaves_the_machine_may_be_a_meeting_but_one_to_the_web_is_none(
    local: str, remote: str, *, is_one: bool
) -> None:
    if sys.byteorder != "little":
        pytest.skip("the addresses are those of a little-endian machine")
    connection = TcpSocket(local.encode(), remote.encode(), b"01", b"1")
    assert RendezvousCheck()._may_be_meeting(connection) == is_one
