"""Messages of the client of a terminal, the user's own shell on it, and the modes of its screen.

The server answers in frames like any other answer. The client's side of the channel needs no header: each message is
one letter, a length in 4 bytes, and bytes.
"""

from __future__ import annotations

import re
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Set, Tuple

INPUT, WINDOW, END, NONCE, REDRAW, SEEN = b"i", b"w", b"e", b"n", b"r", b"s"
LONGEST_INPUT = 64 * 1024
# A client of a job's terminal that is further behind misses output.
BACKLOG_LIMIT = 1024 * 1024
# The socket of a terminal, in its job's folder.
SOCKET = "terminal"
DEFAULT_WINDOW = (24, 80)
# Startup files may put another Python first; so bash reads them as a login shell does, and then gets the variables
# again. Other shells have the last word. This is a script of sh, also inside a container.
LOGIN_SHELL = r"""shell=${SHELL:-bash}
command -v "$shell" >/dev/null 2>&1 || shell=$(command -v bash || command -v sh)
case ${shell##*/} in bash) ;; *) exec "$shell" -i ;; esac
exec "$shell" --rcfile /dev/fd/8 -i 8<<'remote-tool'
exec 8<&-
REMOTE_TOOL_ENVIRONMENT=$(export -p)
[ -r /etc/profile ] && . /etc/profile
for REMOTE_TOOL_FILE in ~/.bash_profile ~/.bash_login ~/.profile; do
  if [ -r "$REMOTE_TOOL_FILE" ]; then . "$REMOTE_TOOL_FILE"; break; fi
done
IFS=: read -r -a REMOTE_TOOL_PATH <<<"$PATH"
eval "$REMOTE_TOOL_ENVIRONMENT"
for REMOTE_TOOL_FILE in "${REMOTE_TOOL_PATH[@]}"; do
  case :$PATH: in *:"$REMOTE_TOOL_FILE":*) ;; *) PATH=$PATH:$REMOTE_TOOL_FILE ;; esac
done
unset REMOTE_TOOL_FILE REMOTE_TOOL_PATH REMOTE_TOOL_ENVIRONMENT
remote-tool
"""

_HEAD = struct.Struct(">cI")
_WINDOW = struct.Struct(">HH")
_COUNT = struct.Struct(">q")
_ALTERNATE = {47, 1047, 1049}
# Modes that are off in a new terminal: cursor keys, reverse, mouse, focus, the other screen, pasting.
_OFF = {1, 5, 9, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004} | _ALTERNATE
# Wrapping and the cursor are on.
_ON = {7, 25}
_SWITCH = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
_LONGEST_SWITCH = 44
# Requests that the reader's own terminal would answer, as if somebody typed.
_QUESTIONS = re.compile(
    rb"\x05|\x1b\[[?>=]?[0-9;]*[cn]|\x1b\[\?[0-9;]*u|\x1b\[[?0-9;]*\$p|\x1b\[>[0-9]*q"
    rb"|\x1b\](?:1[0-9]|4;[0-9]+|52;[a-z]*);\?(?:\x07|\x1b\\)|\x1bP[+$]q[^\x1b\x07]*(?:\x07|\x1b\\)"
)


def message(kind: bytes, data: bytes = b"") -> bytes:
    """Return one message of a client."""
    return _HEAD.pack(kind, len(data)) + data


def window_message(rows: int, columns: int) -> bytes:
    """Return the message that tells a window's size."""
    return message(WINDOW, _WINDOW.pack(min(rows, 0xFFFF), min(columns, 0xFFFF)))


def read_window(data: bytes) -> Tuple[int, int]:
    """Return rows and columns of a window; the usual ones when these are none."""
    rows, columns = _WINDOW.unpack(data) if len(data) == _WINDOW.size else (0, 0)
    return (rows, columns) if rows and columns else DEFAULT_WINDOW


def seen_message(count: int) -> bytes:
    """Return the message that tells how much output a client has seen; -1: it is new."""
    return message(SEEN, _COUNT.pack(count))


def read_count(data: bytes) -> int:
    """Return the count of such a message; -1 when it has none."""
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else -1


class MessageReader:
    """Splits the bytes of a client into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> List[Tuple[bytes, bytes]]:
        """Add bytes; return the messages that they complete. ValueError when one is longer than any of ours."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer)
            if length > LONGEST_INPUT:
                raise ValueError(f"a message of {length} bytes")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            messages.append((kind, bytes(self._buffer[_HEAD.size : end])))
            del self._buffer[:end]
        return messages


class ScreenModes:
    """The modes that output has switched, so that they can be switched again, or back."""

    def __init__(self) -> None:
        self._switched: Set[int] = set()
        self._rest = b""

    def feed(self, output: bytes) -> None:
        """Note the modes that output switches."""
        if b"\x1b" not in output and not self._rest:
            return
        text = self._rest + output
        for found in _SWITCH.finditer(text):
            for number in map(int, filter(None, found[1].split(b";"))):
                if number in (_OFF if found[2] == b"h" else _ON):
                    self._switched.add(number)
                elif number in _OFF | _ON:
                    self._switched.discard(number)
        # The beginning of a switch may be at the end.
        start = text.rfind(b"\x1b", -_LONGEST_SWITCH)
        self._rest = b"" if start < 0 or _SWITCH.match(text, start) else text[start:]

    @property
    def is_full_screen(self) -> bool:
        """Return whether a program such as an editor has the whole screen."""
        return not self._switched.isdisjoint(_ALTERNATE)

    def switch_on(self) -> bytes:
        """Return the sequences that bring a new terminal into these modes."""
        return b"".join(_switch(number, is_set=number in _OFF) for number in sorted(self._switched))

    def switch_off(self) -> bytes:
        """Return the sequences that bring the terminal back; empty when no mode was switched."""
        if not self._switched:
            return b""
        back = b"".join(_switch(number, is_set=number in _ON) for number in sorted(self._switched))
        # An editor may also have switched what keys send, the keypad and colors.
        return back + (b"\x1b[>4m\x1b>\x1b[0m" if self.is_full_screen else b"")


def _switch(number: int, *, is_set: bool) -> bytes:
    return b"\x1b[?%d%s" % (number, b"h" if is_set else b"l")


# For a screen of which nobody knows any more what it has switched.
ALL_OFF = b"".join(_switch(number, is_set=number in _ON) for number in sorted(_OFF | _ON))


def without_questions(output: bytes) -> bytes:
    """Return output that may be shown once more: without requests that a terminal answers."""
    return _QUESTIONS.sub(b"", output)
