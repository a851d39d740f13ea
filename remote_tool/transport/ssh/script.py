"""Wrap a script for the stdin of any login shell; a mark separates its output from the shell's own."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

# The exit status when nothing was run. A startup file of the login shell may have read the beginning of stdin, so only
# a line after this session's own mark is a script. A startup file may also have started another shell, which reads our
# stdin as commands: each of our lines ends such a shell.
NOT_RUN = 93
# The exit status when the script was not run because its output would be lost.
NO_OUTPUT = 94
_GUARD = f"exit {NOT_RUN};#"

# Every login shell reads this in the same way: it has no "!", no assignment and no glob outside the quotes, on which
# tcsh, fish and zsh fail. `read` of every sh reads single bytes from a socket or pipe, so the rest is left for the
# script's commands; `head -c` of some systems would read ahead. A truncated line is not run: `read` fails then.
_REMOTE_COMMAND = (
    f"""exec /bin/sh -c 'IFS= read -r _script && [ "$_script" = "{_GUARD}%s" ] && IFS= read -r _script """
    f"""|| exit {NOT_RUN}; eval "$(printf %%b "${{_script#*#}}")"'"""
)

# A terminal would show its input and cut long lines, so its script is sent only after the mark.
_TERMINAL_COMMAND = (
    """exec /bin/sh -c 'PATH="${PATH:+$PATH:}/usr/bin:/bin"; modes=$(stty -g) && stty raw -echo || exit 1; """
    """printf "\\000%%s %%s\\n" %s $$; IFS= read -r _script || exit 1; stty "$modes"; """
    """eval "$(printf %%b "$_script")"'"""
)

# If a startup file has joined both outputs, messages would be taken for data.
_ONE_OUTPUT = "if [ /dev/fd/1 -ef /dev/fd/2 ]; then exec 2>/dev/null; fi"
_NO_OUTPUT = f"if [ -f /dev/fd/1 ] || [ /dev/fd/1 -ef /dev/null ] 2>/dev/null; then exit {NO_OUTPUT}; fi"

# Characters special to ``printf %b``, and those with a short escape.
_SPECIAL = re.compile(rb"[^ -\[\]-~]")
_SHORT = {b"\\": b"\\\\", b"\n": b"\\n"}

# A session without a terminal may have any PATH; the user's entries come first.
SYSTEM_PATH = 'PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"; export PATH'


@dataclass(frozen=True)
class WrappedScript:
    """A script, wrapped for one session.

    Attributes:
        mark: The first bytes of both outputs of the script; its process id completes the line.
        command: The command for the login shell.
        lines: The input for the command: ASCII without control characters, whatever the script contains.
    """

    mark: bytes
    command: str
    lines: bytes


def wrap(script: str) -> WrappedScript:
    """Wrap a script for a new session.

    Raises:
        ValueError: The script has a NUL, which shells do not support.
    """
    mark = new_mark()
    name = mark.strip(b"\0 ").decode()
    print_mark = f"printf '\\000%s %s\\n' {name} $$"
    prologue = f"unset _script\n{SYSTEM_PATH}\n{print_mark}\n{_ONE_OUTPUT}\n{print_mark} >&2\n{_NO_OUTPUT}\n"
    escaped = _escape_script(prologue + script)
    guard = _GUARD.encode()
    lines = guard + name.encode() + b"\n" + guard + escaped + b"\n"
    return WrappedScript(mark, _REMOTE_COMMAND % name, lines)


def wrap_for_terminal(script: str) -> WrappedScript:
    """Wrap a script for a new session on a terminal, to which its lines are sent after the mark.

    Raises:
        ValueError: The script has a NUL, which shells do not support.
    """
    mark = new_mark()
    command = _TERMINAL_COMMAND % mark.strip(b"\0 ").decode()
    return WrappedScript(mark, command, _escape_script(f"unset _script modes\n{SYSTEM_PATH}\n{script}") + b"\n")


def new_mark() -> bytes:
    """Return an unguessable mark, to be followed by the process id; no text has its NUL."""
    return b"\0" + secrets.token_hex(16).encode() + b" "


def _escape_script(script: str) -> bytes:
    if "\0" in script:
        raise ValueError("a script must not hold a NUL")
    return escape(script.encode("utf-8", "surrogateescape"))


def escape(text: bytes) -> bytes:
    """Return any bytes as one line for ``printf %b``."""
    return _SPECIAL.sub(lambda found: _SHORT.get(found[0]) or b"\\0%03o" % found[0][0], text)
