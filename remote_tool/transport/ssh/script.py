"""Send a script on stdin through any login shell, behind a mark that separates its output from noise."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

# The exit status meaning that nothing was run. A start-up file of the login shell may have read the beginning of
# stdin, so only a line after this session's own mark is a script. And it may have started another shell, which
# reads our stdin as commands: each of our lines ends such a shell.
NOT_OURS = 93
# The same, because the script's output would be lost.
NO_OUTPUT = 94
_GUARD = f"exit {NOT_OURS};#"

# Nothing that a login shell could misread: no "!", no assignment, no glob outside the quotes (tcsh, fish and zsh fail
# on these). `read` of every sh reads single bytes from a socket or pipe, so the rest is left for the script's
# commands; `head -c` of some systems would read ahead. A truncated line is not run: `read` fails then.
_REMOTE_COMMAND = (
    f"""exec /bin/sh -c 'IFS= read -r _script && [ "$_script" = "{_GUARD}%s" ] && IFS= read -r _script """
    f"""|| exit {NOT_OURS}; eval "$(printf %%b "${{_script#*#}}")"'"""
)

# On a terminal, which would show its input and cut long lines, a script is sent only after the mark.
_TERMINAL_COMMAND = (
    """exec /bin/sh -c 'PATH="${PATH:+$PATH:}/usr/bin:/bin"; modes=$(stty -g) && stty raw -echo || exit 1; """
    """printf "\\000%%s %%s\\n" %s $$; IFS= read -r _script || exit 1; stty "$modes"; """
    """eval "$(printf %%b "$_script")"'"""
)

# A startup file may have joined both outputs: then messages would be taken for data.
_ONE_OUTPUT = "if [ /dev/fd/1 -ef /dev/fd/2 ]; then exec 2>/dev/null; fi"
_NO_OUTPUT = f"if [ -f /dev/fd/1 ] || [ /dev/fd/1 -ef /dev/null ] 2>/dev/null; then exit {NO_OUTPUT}; fi"

# Characters special to ``printf %b``, and those with a short escape.
_SPECIAL = re.compile(rb"[^ -\[\]-~]")
_SHORT = {b"\\": b"\\\\", b"\n": b"\\n"}

# A session without a terminal may have any PATH; the user's entries come first.
ENOUGH_PATH = 'PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"; export PATH'


@dataclass(frozen=True)
class WrappedScript:
    """A script in the form for one session.

    Attributes:
        mark: The first bytes of both outputs of the script; the rest of that line is its process id.
        command: The command for the login shell.
        lines: The script, for its stdin; ASCII without control characters, whatever the script contains.
    """

    mark: bytes
    command: str
    lines: bytes


def wrap(script: str) -> WrappedScript:
    """Return a script in the form for a new session.

    Raises:
        ValueError: The script has a NUL, which shells do not support.
    """
    mark = new_mark()
    name = mark.strip(b"\0 ").decode()
    tell = f"printf '\\000%s %s\\n' {name} $$"
    prologue = f"unset _script\n{ENOUGH_PATH}\n{tell}\n{_ONE_OUTPUT}\n{tell} >&2\n{_NO_OUTPUT}\n"
    escaped = _escape_script(prologue + script)
    guard = _GUARD.encode()
    lines = guard + name.encode() + b"\n" + guard + escaped + b"\n"
    return WrappedScript(mark, _REMOTE_COMMAND % name, lines)


def wrap_for_terminal(script: str) -> WrappedScript:
    """Return a script in the form for a new session on a terminal, which wants its lines after the mark.

    Raises:
        ValueError: The script has a NUL, which shells do not support.
    """
    mark = new_mark()
    command = _TERMINAL_COMMAND % mark.strip(b"\0 ").decode()
    return WrappedScript(mark, command, _escape_script(f"unset _script modes\n{ENOUGH_PATH}\n{script}") + b"\n")


def new_mark() -> bytes:
    """Return an unguessable mark, which the process id follows; its NUL occurs in no text."""
    return b"\0" + secrets.token_hex(16).encode() + b" "


def _escape_script(script: str) -> bytes:
    if "\0" in script:
        raise ValueError("a script must not hold a NUL")
    return escape(script.encode("utf-8", "surrogateescape"))


def escape(text: bytes) -> bytes:
    """Return any bytes as one line for ``printf %b``."""
    return _SPECIAL.sub(lambda found: _SHORT.get(found[0]) or b"\\0%03o" % found[0][0], text)
