"""What GNU find tells of a project's files: all that a look at each of them would, in a tenth of the time.

A record is the name, NUL, a line of fields and, of a link, NUL and where it leads. Two NULs end it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import TYPE_CHECKING

from remote_tool.system.programs import Question, ask_program
from remote_tool.transport.sync.entries import SECOND, Seen
from remote_tool.transport.sync.local_rsync import environment, scratch_file
from remote_tool.transport.sync.secrets import OWN_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

END = b"\0\0"
_KINDS = {b"f": stat.S_IFREG, b"d": stat.S_IFDIR, b"l": stat.S_IFLNK}
# Of a folder no times: they change with what is in it, which is told by itself.
_FOLDER = r"%P\0d %m %i %D %U 0 0 0\0\0"
_FIELDS = r"%y %m %i %D %U %C@ %T@ %s"
_LINK = rf"%P\0{_FIELDS}\0%l\0\0"
_OTHER = rf"%P\0{_FIELDS}\0\0"
# Before 1970 some versions of find tell another time.
_TIME = re.compile(rb"([0-9]{1,18})(?:\.([0-9]{9})[0-9]*)?")


# Of a regular file; the groups: name, mode, inode, device, user, second and nanosecond of its time, size.
PLAIN = re.compile(
    rb"([^\0]+)\0f ([0-7]{3}) ([0-9]+) ([0-9]+) ([0-9]+) [0-9.]+ ([1-9][0-9]{0,17})\.([0-9]{9})[0-9]* ([0-9]+)"
)


class OddRecordError(ValueError):
    """find told something else than it was asked for."""


def parse_record(record: bytes) -> Seen:
    """Read a record.

    Raises:
        OddRecordError: It is none.
    """
    try:
        name, fields, *target = record.split(b"\0")
        kind, mode, inode, device, user, changed, modified, size = fields.split(b" ")
        identity = (int(inode), int(device), int(user))
        permissions = _KINDS.get(kind, 0) | int(mode, 8)
        return Seen(name, permissions, int(size), _time(modified), *identity, b"".join(target), _time(changed))
    except ValueError as error:
        raise OddRecordError(record) from error


def kind_and_name(record: bytes) -> bytes:
    """Return the letter of its kind and the name of a record, as one key."""
    name, _, fields = record.partition(b"\0")
    return fields[:1] + name


def _time(text: bytes) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise OddRecordError(text)
    return int(found[1]) * SECOND + int(found[2] or 0)


async def find_files(root: Path, pruned: Iterable[bytes], seconds: float) -> bytes | None:
    """Return the records of all files, without those in our own and in the pruned folders.

    None where find is not GNU's, or could not see all: then somebody else has to look.
    """
    if sys.platform != "linux":
        return None
    top = os.fsencode(root)
    names = [word for name in OWN_FOLDERS for word in ("-o", "-name", name)]
    paths = [word for name in pruned for word in (b"-o", b"-path", _literal(top + b"/" + name))]
    prune = ("-type", "d", "(", *[*names, *map(os.fsdecode, paths)][1:], ")", "-prune")
    print_all = ("-type", "d", "-printf", _FOLDER, "-o", "-type", "l", "-printf", _LINK, "-o", "-printf", _OTHER)
    with scratch_file() as out:
        question = Question(seconds, environment(), output=out, with_errors=True)
        try:
            answer = await ask_program(question, "find", str(root), "-mindepth", "1", *prune, "-o", *print_all)
        except (OSError, TimeoutError):
            return None
        out.seek(0)
        return None if answer.status or answer.errors else out.read()


def _literal(path: bytes) -> bytes:
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", path)
