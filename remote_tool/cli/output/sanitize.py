"""Make output of servers safe for a terminal."""

from __future__ import annotations

import re

# C0, DEL, C1, characters that reorder or break text, and lone surrogates.
_STEERING = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_HOSTILE = re.compile(f"[\x00-\x08\x0b-\x1f{_STEERING}]")
# Colors (SGR) and "erase the line", used by progress bars; any other escape sequence is unsafe.
_COLOR = r"\x1b\[[0-9;:]{0,40}m"
_ERASE = r"\x1b\[[0-2]?K"
_HOSTILE_IN_LINE = re.compile(f"({_COLOR})|{_ERASE}|[\x00-\x08\x0b-\x1f{_STEERING}]")
_HOSTILE_IN_STREAM = re.compile(f"({_COLOR}|{_ERASE})|[\x00-\x08\x0b\x0c\x0e-\x1f{_STEERING}]")
_UNINDENTED = re.compile(r"\n(?!  )")
_BEGINNING = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")


def escape_controls(text: str) -> str:
    r"""Return a text with every control character but tab and line feed written out, such as ``\\x1b``."""
    return _HOSTILE.sub(lambda found: _written(found[0]), text)


def paragraph(text: str) -> str:
    """Return a safe text with its lines after the first indented, so that none looks like ours."""
    return _UNINDENTED.sub("\n  ", escape_controls(text))


def one_line(text: str) -> str:
    """Return a safe text on one line."""
    return escape_controls(" ".join(text.split("\n")).replace("\t", " "))


def harmless_line(text: str) -> str:
    """Return a safe log line for a terminal: colors are kept and end with it, everything else is escaped."""
    shown = _HOSTILE_IN_LINE.sub(lambda found: found[1] or _unless_erasing(found[0]), text)
    return f"{shown}\x1b[0m" if "\x1b" in shown else shown


def harmless_stream(text: str) -> tuple[str, str]:
    """Return safe output for a terminal, and an incomplete rest to prepend to the next piece.

    Colors, carriage returns and erasing of the line are kept, so that progress bars work.
    """
    rest = _BEGINNING.search(text)
    whole, waiting = (text[: rest.start()], rest[0]) if rest else (text, "")
    return _HOSTILE_IN_STREAM.sub(lambda found: found[1] or _written(found[0]), whole), waiting


def _unless_erasing(found: str) -> str:
    # It would erase the label before the line.
    return _written(found) if len(found) == 1 else ""


def _written(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004
