"""How a script gets to a server: in stdin, through any login shell, behind a mark that sets it off from noise."""

from __future__ import annotations

import re
import secrets

# Constant, so that no login shell has anything to misread: no "!", no assignment, no glob outside the quotes (tcsh,
# fish and zsh trip over these). `read` of every sh takes single bytes from a socket or pipe, so what follows the
# first line is left for the script's commands; `head -c` of some systems would read ahead.
REMOTE_COMMAND = """exec /bin/sh -c 'IFS= read -r _script; eval "$(printf %b "$_script")"'"""

# What does not stand for itself in the format of ``printf %b``, and what has a short form there.
_SPECIAL = re.compile(rb"[^ -\[\]-~]")
_SHORT = {b"\\": b"\\\\", b"\n": b"\\n"}

# A session without a terminal may have any PATH; what the user has set still comes first.
ENOUGH_PATH = 'PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"; export PATH'


def new_mark() -> bytes:
    """Return what a script prints first: nobody can guess it, and no text has a NUL."""
    return b"\0" + secrets.token_hex(16).encode() + b"\n"


def first_line(script: str, mark: bytes) -> bytes:
    """Return the line of stdin that carries a script; ASCII without control characters, whatever the script holds.

    Raises:
        ValueError: The script has a NUL, which no shell can hold.
    """
    if "\0" in script:
        raise ValueError("a script must not hold a NUL")
    name = mark.strip(b"\0\n").decode()
    prologue = f"unset _script\n{ENOUGH_PATH}\nprintf '\\000%s\\n' {name}\nprintf '\\000%s\\n' {name} >&2\n"
    return _escape((prologue + script).encode("utf-8", "surrogateescape")) + b"\n"


def _escape(text: bytes) -> bytes:
    """Write bytes for ``printf %b``."""
    return _SPECIAL.sub(lambda found: _SHORT.get(found[0]) or b"\\0%03o" % found[0][0], text)
