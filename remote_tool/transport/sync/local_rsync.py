"""The local rsync: its version, the options that it supports, and how to parse its output."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.system.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = re.compile(rb"rsync +version v?((\d+)\.(\d+)\S*)")
# The format "%i %n": the change, the kind, and letters that vary between versions; then the name.
_ITEM = re.compile(rb"([<>ch.])([fdLDS])\S+ (.+)", re.DOTALL)
_ESCAPED = re.compile(rb"\\#([0-7]{3})")
# "     12,345,678  42%   11.30MB/s    0:00:10": such a line starts with a carriage return, an item never does.
_PROGRESS = re.compile(rb"\r +([0-9][0-9,.]*) +[0-9]{1,3}%")
VERSION_SECONDS = 60.0
_FIRST_WITH_NO_S = (3, 0)
_FIRST_WITH_INFO = (3, 1)
_found: dict[str, LocalRsync] = {}


@dataclass(frozen=True)
class LocalRsync:
    """An rsync program.

    Attributes:
        program: Its path.
        version: Such as ``(3, 2)``; empty for openrsync, which macOS has and which supports fewer options.
        release: Such as ``3.2.7``, or ``openrsync``.
    """

    program: str
    version: tuple[int, ...]
    release: str = ""

    @property
    def is_original(self) -> bool:
        return bool(self.version)

    @property
    def item_options(self) -> list[str]:
        """Options that print one line per changed file; see :meth:`parse_item`."""
        return ["-i", "--out-format=%i %n"] if self.is_original else ["-i"]

    @property
    def progress_options(self) -> list[str]:
        """Options that print progress; see :meth:`parse_progress`."""
        return ["--info=progress2"] if self.version >= _FIRST_WITH_INFO else []

    @property
    def mode_options(self) -> list[str]:
        """Options that drop setuid, setgid and sticky bits and make folders writable by their owner."""
        return ["--chmod=u-s,g-s,o-t,Du+rwx"] if self.is_original else ["--chmod=u-s,g-s,o-t"]

    @property
    def link_options(self) -> list[str]:
        """Options that keep a link on the server if it points to a folder."""
        return ["--keep-dirlinks"] if self.is_original else []

    @property
    def plain_arguments(self) -> list[str]:
        """Options that pass all arguments of the server's rsync in its command, where they are parsed."""
        return ["--no-s"] if self.version >= _FIRST_WITH_NO_S else []

    def parse_progress(self, lines: Sequence[bytes]) -> int:
        """Return the bytes of files done, from the last line of progress; 0 if there is none."""
        latest = next((line for line in reversed(lines) if line.startswith(b"\r")), b"")
        found = _PROGRESS.findall(latest)
        return int(re.sub(rb"[^0-9]", b"", found[-1])) if found else 0

    def parse_item(self, line: bytes) -> Item | None:
        """Parse one line of output; None if it names no file."""
        found = _ITEM.fullmatch(line.rstrip(b"\n"))
        if found is None:
            return None
        name = found[3]
        if self.is_original:
            name = unescape(name)
        elif found[2] == b"L":
            name = name.partition(b" -> ")[0]
        return Item(name, is_folder=found[2] == b"d")


@dataclass(frozen=True)
class Item:
    """A file, link or folder that rsync changes."""

    name: bytes
    is_folder: bool


async def find_local_rsync() -> LocalRsync:
    """Return the local rsync; its version is determined once.

    Raises:
        SyncError: rsync is not installed.
    """
    program = shutil.which("rsync")
    if program is None:
        hint = "brew install rsync" if os.uname().sysname == "Darwin" else "sudo apt-get install rsync"
        raise SyncError("rsync is not installed on this machine", hint=hint)
    if program not in _found:
        _found[program] = LocalRsync(program, *_parse_version(await _ask_version(program)))
    return _found[program]


def environment() -> dict[str, str]:
    """Return the environment for rsync: without the user's settings, and with English messages."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    return {**own, "LC_ALL": "C"}


def scratch_file() -> IO[bytes]:
    """Return an unnamed file for rsync's output, because a pipe would wake this process for each line.

    The file is in memory where possible, so that a full local disk does not stop a sync.
    """
    if not hasattr(os, "memfd_create"):
        return tempfile.TemporaryFile()
    return os.fdopen(os.memfd_create("rsync"), "w+b")


def unescape(name: bytes) -> bytes:
    r"""Decode a name: rsync writes unprintable bytes as ``\#ooo``."""
    return name if b"\\#" not in name else _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), name)


async def _ask_version(program: str) -> bytes:
    try:
        return (await run_program(program, "--version", seconds=VERSION_SECONDS)).output
    except TimeoutError:
        raise SyncError(f"{program} --version gave no answer for {VERSION_SECONDS:.0f} s") from None


def _parse_version(output: bytes) -> tuple[tuple[int, ...], str]:
    found = _VERSION.match(output)
    return ((int(found[2]), int(found[3])), os.fsdecode(found[1])) if found else ((), "openrsync")
