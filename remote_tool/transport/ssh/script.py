"""How a script gets to a server: in stdin, through any login shell, behind a mark that sets it off from noise."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

# The exit status that says that nothing was run. A start-up file of the login shell may have read the beginning of
# stdin, so only a line that follows this session's own mark is a script. And it may have started another shell, which
# takes our stdin for its commands: each of our lines ends such a shell.
NOT_OURS = 93
_GUARD = f"exit {NOT_OURS};#"

# No login shell has anything to misread: no "!", no assignment, no glob outside the quotes (tcsh, fish and zsh trip
# over these). `read` of every sh takes single bytes from a socket or pipe, so what follows is left for the script's
# commands; `head -c` of some systems would read ahead. A line that was cut off is not run: `read` fails then.
_REMOTE_COMMAND = (
    f"""exec /bin/sh -c 'IFS= read -r _script && [ "$_script" = "{_GUARD}%s" ] && IFS= read -r _script """
    f"""|| exit {NOT_OURS}; eval "$(printf %%b "${{_script#*#}}")"'"""
)

# What does not stand for itself in the format of ``printf %b``, and what has a short form there.
_SPECIAL = re.compile(rb"[^ -\[\]-~]")
_SHORT = {b"\\": b"\\\\", b"\n": b"\\n"}

# A session without a terminal may have any PATH; what the user has set still comes first.
ENOUGH_PATH = 'PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"; export PATH'


@dataclass(frozen=True)
class WrappedScript:
    """A script as one session carries it.

    Attributes:
        mark: What both outputs of the script begin with; the rest of that line is its process id.
        command: What the login shell is asked to run.
        lines: What its stdin begins with; ASCII without control characters, whatever the script holds.
    """

    mark: bytes
    command: str
    lines: bytes


def wrap(script: str) -> WrappedScript:
    """Return a script as a new session carries it.

    Raises:
        ValueError: The script has a NUL, which no shell can hold.
    """
    if "\0" in script:
        raise ValueError("a script must not hold a NUL")
    mark = new_mark()
    name = mark.strip(b"\0 ").decode()
    prologue = f"unset _script\n{ENOUGH_PATH}\nprintf '\\000%s %s\\n' {name} $$\nprintf '\\000%s %s\\n' {name} $$ >&2\n"
    escaped = _escape((prologue + script).encode("utf-8", "surrogateescape"))
    guard = _GUARD.encode()
    lines = guard + name.encode() + b"\n" + guard + escaped + b"\n"
    return WrappedScript(mark, _REMOTE_COMMAND % name, lines)


def new_mark() -> bytes:
    """Return what a script prints first, before its process id: nobody can guess it, and no text has a NUL."""
    return b"\0" + secrets.token_hex(16).encode() + b" "


def _escape(text: bytes) -> bytes:
    """Write bytes for ``printf %b``."""
    return _SPECIAL.sub(lambda found: _SHORT.get(found[0]) or b"\\0%03o" % found[0][0], text)
