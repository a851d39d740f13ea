"""Keys that are for us and not for the program: ``~.`` and others after a new line as with ssh, and Ctrl-]."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ESCAPE = ord("~")
BRACKET = 0x1D
SUSPEND_KEY = 0x1A
NEW_LINES = b"\r\n"


class Key(Enum):
    """A request of the user."""

    DETACH = "detach"
    SUSPEND = "suspend"
    HELP = "help"


AFTER_ESCAPE = {ord("."): Key.DETACH, SUSPEND_KEY: Key.SUSPEND, ord("?"): Key.HELP}


class Escapes:
    """Finds our keys among typed bytes.

    Args:
        bracket: Whether Ctrl-] detaches too.
    """

    def __init__(self, *, bracket: bool) -> None:
        self._bracket = bracket
        self._at_line_start = True
        self._after_escape = False

    def feed(self, typed: bytes) -> Iterator[bytes | Key]:
        """Yield the bytes for the program and our keys, in order."""
        rest = bytearray()
        for byte in typed:
            key = self._key(byte, rest)
            if key is not None:
                if rest:
                    yield bytes(rest)
                    rest.clear()
                yield key
        if rest:
            yield bytes(rest)

    def _key(self, byte: int, rest: bytearray) -> Key | None:
        if self._after_escape:
            self._after_escape = False
            if byte in AFTER_ESCAPE:
                self._at_line_start = True
                return AFTER_ESCAPE[byte]
            rest.append(ESCAPE)
            if byte == ESCAPE:
                self._at_line_start = False
                return None
        elif byte == ESCAPE and self._at_line_start:
            self._after_escape = True
            return None
        if byte == BRACKET and self._bracket:
            return Key.DETACH
        rest.append(byte)
        self._at_line_start = byte in NEW_LINES
        return None
