"""Select the files of a folder with rsync and the rules of a project."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.system.programs import Question, ask_program
from remote_tool.transport.sync.local_rsync import environment, scratch_file, unescape
from remote_tool.transport.sync.project.filter_rules import joined, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from remote_tool.transport.sync.local_rsync import LocalRsync

LISTING_SECONDS = 600.0
VANISHED_HERE = (23, 24)
_ITEM = re.compile(rb"^[<>ch.]([fdL])\S+ (.+)$", re.MULTILINE)
_KINDS = {b"f": b"f", b"d": b"d", b"L": b"l"}
_NOT_REGULAR = re.compile(rb'^skipping non-regular file "(.*)"$', re.MULTILINE)
_COMPLAINT = re.compile(rb"rsync: (?:\[\w+\] )?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Selection:
    """The files that rsync selects.

    Attributes:
        keys: The letter of the kind (f, d or l) and the name of each file, folder and link.
        not_regular: Files of other kinds.
        complaints: Files that rsync could not read.
    """

    keys: AbstractSet[bytes] = field(repr=False)
    not_regular: tuple[bytes, ...] = ()
    complaints: tuple[bytes, ...] = ()

    @cached_property
    def names(self) -> frozenset[bytes]:
        return frozenset(key[1:] for key in self.keys)


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
    output, complaints = await _list(rsync, root, joined([*rules, *_only(among)]))
    return await asyncio.to_thread(_parse, rsync, output, complaints)


def _only(names: Iterable[bytes] | None) -> list[bytes]:
    if names is None:
        return []
    wanted = {name[:end] for name in names for end in [*(at.start() for at in re.finditer(b"/", name)), len(name)]}
    return [*(b"+ /" + literal(name) for name in sorted(wanted)), b"- *"]


def _parse(rsync: LocalRsync, output: bytes, complaints: bytes) -> Selection:
    if rsync.is_original:
        pairs = ((_KINDS[found[1]], found[2]) for found in _ITEM.finditer(output))
        keys = {kind + unescape(name).rstrip(b"/") for kind, name in pairs}
    else:
        items = filter(None, map(rsync.parse_item, output.split(b"\n")))
        keys = {(b"d" if item.is_folder else b"f") + item.name.rstrip(b"/") for item in items}
    said = [line for line in complaints.splitlines() if not line.startswith(b"rsync error: ")]
    keys -= {b"d.", b"d"}
    return Selection(
        keys,
        tuple(map(unescape, _NOT_REGULAR.findall(output))),
        tuple(unescape(found[1]) for found in map(_COMPLAINT.match, said) if found),
    )


async def _list(rsync: LocalRsync, root: Path, rules: bytes) -> tuple[bytes, bytes]:
    """Return what rsync would send to an empty folder, and its stderr."""
    nowhere = os.path.join(tempfile.gettempdir(), f"remote-tool-{secrets.token_hex(8)}")
    with scratch_file() as out:
        # The trailing slash sends the folder's contents; the destination does not exist, and -n never creates it.
        question = Question(LISTING_SECONDS, environment(), stdin=rules, output=out, with_errors=True)
        command = (rsync.program, "-rln", "-0", "--exclude-from=-", *rsync.item_options, f"{root}/", f"{nowhere}/")
        try:
            answer = await ask_program(question, *command)
        except TimeoutError:
            raise SyncError(f"Listing {root} took longer than {LISTING_SECONDS:.0f} s") from None
        out.seek(0)
        output = out.read()
    if answer.status not in {0, *VANISHED_HERE}:
        text = answer.errors.decode(errors="replace").strip()
        raise SyncError(f"rsync cannot list {root} (status {answer.status}): {text}")
    return output, answer.errors
