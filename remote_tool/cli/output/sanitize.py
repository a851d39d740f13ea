"""Make output of servers safe for a terminal."""

from __future__ import annotations

import re

# DEL, C1, characters that reorder or break text, and lone surrogates.
_INVISIBLE = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f{_INVISIBLE}]")
# Colors (SGR) and "erase the line", used by progress bars; any other escape sequence is unsafe.
_COLOR = r"\x1b\[[0-9;:]{0,40}m"
_ERASE = r"\x1b\[[0-2]?K"
_UNSAFE_IN_LINE = re.compile(f"({_COLOR})|{_ERASE}|[\x00-\x08\x0b-\x1f{_INVISIBLE}]")
_UNSAFE_IN_STREAM = re.compile(f"({_COLOR}|{_ERASE})|[\x00-\x08\x0b\x0c\x0e-\x1f{_INVISIBLE}]")
_UNINDENTED = re.compile(r"\n(?!  )")
_INCOMPLETE_ESCAPE = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")


def escape_controls(text: str) -> str:
    r"""Return a text with every control character but tab and line feed written out, such as ``\\x1b``."""
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def paragraph(text: str) -> str:
    """Return a safe text whose lines after the first are indented, so that none looks like ours."""
    return _UNINDENTED.sub("\n  ", escape_controls(text))


def one_line(text: str) -> str:
    """Return a safe text on one line."""
    return escape_controls(" ".join(text.split("\n")).replace("\t", " "))


def harmless_line(text: str) -> str:
    """Return a safe log line for a terminal: colors are kept and end with it, everything else is escaped."""
    shown = _UNSAFE_IN_LINE.sub(lambda match: match[1] or _escaped_unless_erase(match[0]), text)
    return f"{shown}\x1b[0m" if "\x1b" in shown else shown


def harmless_stream(text: str) -> tuple[str, str]:
    """Return safe output for a terminal, and an incomplete rest to prepend to the next piece.

    Colors, carriage returns and erasing of the line are kept, so that progress bars work.
    """
    incomplete = _INCOMPLETE_ESCAPE.search(text)
    complete, rest = (text[: incomplete.start()], incomplete[0]) if incomplete else (text, "")
    return _UNSAFE_IN_STREAM.sub(lambda match: match[1] or _escaped(match[0]), complete), rest


def _escaped_unless_erase(sequence: str) -> str:
    # To erase the line would erase its label, too.
    return _escaped(sequence) if len(sequence) == 1 else ""


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004
