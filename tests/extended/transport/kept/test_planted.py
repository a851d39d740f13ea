"""Folders, files and sockets that are not what a kept login has left there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.jobs.job import as_iso
from remote_tool.transport.host import Login
from remote_tool.transport.kept.folder import KeptFolder, private_folder
from remote_tool.transport.kept.listing import kept_logins
from remote_tool.transport.kept.record import AcceptedHostKey, Record, read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")

NOBODY = 65534


@pytest.fixture
def place(runtime: Path) -> Iterator[KeptFolder]:
    """A kept login on disk, with a socket at which nobody listens."""
    folder = private_folder()
    assert folder == runtime / "remote-tool"
    place = KeptFolder(folder / "first")
    place.create()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.path / "sabcd"))
        (place.path / "sabcd").chmod(0o600)
        Record(
            project="/project",
            server="first",
            socket=place.path / "sabcd",
            since=1.5e9,
            login=Login("somebody", "ed25519 key", "SHA256:x", is_new=False),
            address="10.0.0.5:22",
            hosts=(AcceptedHostKey(("[10.0.0.5]:22",), ("/nonexistent",), None, "ssh-ed25519", "00"),),
            watched={"/nonexistent": ()},
        ).write(place)
        yield place


def _fifo(place: KeptFolder) -> None:
    place.record.unlink()
    os.mkfifo(place.record, 0o600)


def _linked_record(place: KeptFolder) -> None:
    place.record.rename(place.path / "moved")
    place.record.symlink_to("moved")


def _folder_as_record(place: KeptFolder) -> None:
    place.record.unlink()
    place.record.mkdir(mode=0o700)


def _endless_record(place: KeptFolder) -> None:
    with place.record.open("ab") as file:
        file.truncate(1 << 40)


def _writable_record(place: KeptFolder) -> None:
    place.record.chmod(0o660)


def _writable_folder(place: KeptFolder) -> None:
    place.path.chmod(0o770)


def _linked_folder(place: KeptFolder) -> None:
    place.path.rename(place.path.with_name("moved"))
    place.path.symlink_to("moved")


def _deep_record(place: KeptFolder) -> None:
    place.record.write_bytes(b"[" * 200_000)


CHANGES = [
    *(_fifo, _linked_record, _folder_as_record, _endless_record),
    *(_writable_record, _writable_folder, _linked_folder, _deep_record),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.row(193)
def test_a_changed_record_or_socket_is_not_used_as_a_kept_login(
    place: KeptFolder, change: Callable[[KeptFolder], None]
) -> None:
    assert read_record(place) is not None
    change(place)
    assert read_record(place) is None
    assert [each for each, _ in kept_logins(Path("/project"), ["first"]) if each == place] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("name", ["", "record.json"])
@pytest.mark.row(193)
def test_files_of_another_user_are_not_used_as_a_kept_login(place: KeptFolder, name: str) -> None:
    """As when the folder was open to others for a while."""
    os.chown(place.path / name, NOBODY, NOBODY)
    assert read_record(place) is None


ODD: list[Any] = [
    *(None, "", "..", "a/b", "\0", "\ud800", "zz", -1, 1e300, float("nan"), 2**70),
    *([], [None], ["\0"], [[]], {}, {"\0": 1}, {"a": None}),
]


@pytest.mark.row(193)
def test_odd_content_of_a_record_is_never_an_error(place: KeptFolder) -> None:
    good = place.record.read_bytes()
    keys = list(json.loads(good))
    for number in range(len(keys) + len(Login.__match_args__) + len(AcceptedHostKey.__match_args__)):
        for odd in ODD:
            values = json.loads(good)
            inner = [values, values["login"], values["hosts"][0]]
            holder, key = [(each, name) for each in inner for name in each][number]
            holder[key] = odd
            place.record.write_text(json.dumps(values))
            record = read_record(place)
            if record is not None:
                assert record.is_usable in {True, False}
                assert as_iso(record.since)
                assert [each for _, each in kept_logins(Path("/project"), ["first"])] in ([], [record])


NO_ROOM = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from remote_tool.transport.kept.folder import private_folder
print(private_folder())
"""


@pytest.mark.row(194)
def test_a_machine_without_room_for_temporary_files_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program can write a byte; that was an error before there was a command."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    ran = subprocess.run([sys.executable, "-c", NO_ROOM], capture_output=True, text=True, check=False, timeout=300)
    assert (ran.stdout, ran.stderr) == ("None\n", "")
