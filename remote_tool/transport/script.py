"""How a script gets to a server: in stdin, through any login shell, behind a mark that sets it off from noise."""

from __future__ import annotations

import secrets

# Constant, so that no login shell has anything to misread: no "!", no assignment, no glob outside the quotes (tcsh,
# fish and zsh trip over these). `read` of every sh takes single bytes from a socket or pipe, so what follows the
# first line is left for the script's commands; `head -c` of some systems would read ahead.
REMOTE_COMMAND = """exec /bin/sh -c 'IFS= read -r _script; eval "$(printf %b "$_script")"'"""

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
    plain = {byte: bytes([byte]) for byte in range(0x20, 0x7F)} | {0x5C: b"\\\\", 0x0A: b"\\n"}
    return b"".join(plain.get(byte) or b"\\0%03o" % byte for byte in text)
