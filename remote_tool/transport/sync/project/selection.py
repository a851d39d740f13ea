"""Select the files of a folder with rsync and the rules of a project."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.system.programs import run_program
from remote_tool.transport.sync.blocks import Blocks
from remote_tool.transport.sync.local_rsync import environment, scratch_file, unescape
from remote_tool.transport.sync.project.filter_rules import joined, literal
from remote_tool.transport.sync.project.found_files import END

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from remote_tool.transport.sync.local_rsync import LocalRsync

LISTING_SECONDS = 600.0
VANISHED_HERE = (23, 24)
_ITEM = re.compile(rb"^[<>ch.]([fdL])\S+ (.+)$", re.MULTILINE)
_KINDS = {b"f": b"f", b"d": b"d", b"L": b"l"}
_NOT_REGULAR = re.compile(rb'^skipping non-regular file "(.*)"$', re.MULTILINE)
_HIDDEN = re.compile(rb"^\[sender\] hiding (\w+) (.+) because of pattern (.+)$", re.MULTILINE)
_COMPLAINT = re.compile(rb"rsync: (?:\[\w+\] )?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Selection:
    """The files that rsync selects.

    Attributes:
        keys: The key of each file, folder and link, see :func:`key_of`, in blocks whose records :data:`END` ends.
        folders: The names of the folders.
        not_regular: Files of other kinds.
        complaints: Files that rsync could not read.
    """

    keys: Sequence[bytes] = field(default=(), repr=False)
    folders: AbstractSet[bytes] = field(default=frozenset(), repr=False)
    not_regular: tuple[bytes, ...] = ()
    complaints: tuple[bytes, ...] = ()

    @property
    def each_key(self) -> Iterator[bytes]:
        return (key for block in self.keys for key in block.split(END)[:-1])

    @property
    def count(self) -> int:
        return sum(block.count(END) for block in self.keys)


async def select(
    rsync: LocalRsync, root: Path, rules: Sequence[bytes], among: Iterable[bytes] | None = None
) -> Selection:
    """Have rsync select files.

    Args:
        rsync: The program.
        root: The folder.
        rules: The filter rules.
        among: Select only among these names; None: among all.

    Raises:
        SyncError: rsync cannot list the folder.
    """
    with scratch_file() as out:
        complaints = await _list(rsync, root, joined([*rules, *_only(among)]), out)
        return await asyncio.to_thread(_parse, rsync, Blocks(out.fileno(), b"\n"), complaints)


async def find_hidden(rsync: LocalRsync, root: Path, rules: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the files and folders that a rule hides from rsync, and the rule.

    Raises:
        SyncError: This rsync does not say which rule it is, or cannot list the folder.
    """
    if not rsync.is_original:
        raise SyncError(f"{rsync.program} does not say which rule leaves a file out; rsync 3 does")
    with scratch_file() as out:
        await _list(rsync, root, joined([*rules]), out, "-vv")
        found = [pair for block in Blocks(out.fileno(), b"\n") for pair in _HIDDEN.findall(block)]
    return [(unescape(name) + (b"/" if kind == b"directory" else b""), unescape(rule)) for kind, name, rule in found]


def _only(names: Iterable[bytes] | None) -> list[bytes]:
    if names is None:
        return []
    wanted = {name[:end] for name in names for end in [*(at.start() for at in re.finditer(b"/", name)), len(name)]}
    return [*(b"+ /" + literal(name) for name in sorted(wanted)), b"- *"]


def _parse(rsync: LocalRsync, output: Blocks, complaints: bytes) -> Selection:
    keys, folders, not_regular = list[bytes](), set[bytes](), list[bytes]()
    for block in output:
        items = [(kind, name) for kind, name in _items(rsync, block) if name not in {b".", b""}]
        keys.append(b"".join(name + b"\0" + kind + END for kind, name in items))
        folders.update(name for kind, name in items if kind == b"d")
        not_regular += map(unescape, _NOT_REGULAR.findall(block))
    said = [line for line in complaints.splitlines() if not line.startswith(b"rsync error: ")]
    unread = tuple(unescape(found[1]) for found in map(_COMPLAINT.match, said) if found)
    return Selection(keys, folders, tuple(not_regular), unread)


def _items(rsync: LocalRsync, lines: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the letter of the kind (f, d or l) and the name of each file."""
    if rsync.is_original:
        return ((_KINDS[kind], unescape(name).rstrip(b"/")) for kind, name in _ITEM.findall(lines))
    items = filter(None, map(rsync.parse_item, lines.split(b"\n")))
    return ((b"d" if item.is_folder else b"f", item.name.rstrip(b"/")) for item in items)


async def _list(rsync: LocalRsync, root: Path, rules: bytes, out: IO[bytes], *more: str) -> bytes:
    """Write what rsync would send to an empty folder, and return its stderr."""
    nowhere = os.path.join(tempfile.gettempdir(), f"remote-tool-{secrets.token_hex(8)}")
    # The trailing slash sends the folder's contents; the destination does not exist, and -n never creates it.
    command = (rsync.program, "-rln", "-0", "--exclude-from=-", *rsync.item_options, *more, f"{root}/", f"{nowhere}/")
    try:
        answer = await run_program(
            *command, seconds=LISTING_SECONDS, env=environment(), stdin=rules, output=out, with_errors=True
        )
    except TimeoutError:
        raise SyncError(f"Listing {root} took longer than {LISTING_SECONDS:.0f} s") from None
    if answer.status not in {0, *VANISHED_HERE}:
        text = answer.errors.decode(errors="replace").strip()
        raise SyncError(f"rsync cannot list {root} (status {answer.status}): {text}")
    return answer.errors
