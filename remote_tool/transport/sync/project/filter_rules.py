"""The filter rules with which rsync selects files to send."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.system.files import opened_plain
from remote_tool.transport.sync.secrets import OWN_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LINE_END = re.compile(rb"\r\n|\n|\r")
_TRAILING_BLANKS = re.compile(rb"(?<!\\)[ \t]+\Z")


def joined(lines: list[bytes]) -> bytes:
    """Encode rules for rsync."""
    return b"".join(line + b"\0" for line in lines)


def own_rules(folders: Iterable[str]) -> list[bytes]:
    """Return the rules that come first, because the first match wins."""
    # A file in a subfolder that is named as a folder of ours is selected, and then left out with a message; not one
    # named .git, which every worktree of Git has.
    own = [b".git"] + [each for name in OWN_FOLDERS for each in (b"/" + name.encode(), name.encode() + b"/")]
    return own + [b"/" + literal(os.fsencode(name).strip(b"/")) for name in folders]


def users_rules(file: Path) -> list[bytes]:
    """Return the user's patterns for rsync, without a lone ``!``, which would clear all rules before it."""
    try:
        with opened_plain(file) as stream:
            text = stream.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SyncError(f"{file} cannot be read: {error.strerror}") from error
    return _clean_lines(text)


def _clean_lines(text: bytes) -> list[bytes]:
    lines = []
    for raw in _LINE_END.split(text.removeprefix(b"\xef\xbb\xbf")):
        # rsync ends a line at a NUL; trailing blanks are invisible.
        line = _TRAILING_BLANKS.sub(b"", raw.partition(b"\0")[0])
        if line and line != b"!" and not line.startswith((b"#", b";")):
            lines.append(line)
    return lines


def literal(name: bytes) -> bytes:
    """Return a pattern that matches only a name; backslashes are literal in a pattern without wildcards."""
    return re.sub(rb"([*?\[\\])", rb"\\\1", name) if re.search(rb"[*?\[]", name) else name
