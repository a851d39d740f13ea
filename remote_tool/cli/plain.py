"""Makes what servers send harmless for a terminal."""

from __future__ import annotations

import re

# C0 without tab and line feed, DEL, C1, and the characters that reorder text.
_HOSTILE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# As above, but colours (SGR) and carriage return pass.
_HOSTILE_IN_LOGS = re.compile(
    r"(\x1b\[[0-9;:]{0,40}m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def visible(text: str) -> str:
    r"""Return a text with every control character written out, such as ``\\x1b``."""
    return _HOSTILE.sub(lambda found: _written(found[0]), text)


def one_line(text: str) -> str:
    """Return a text on one line, harmless."""
    return visible(" ".join(text.split("\n")).replace("\t", " "))


def harmless_log(text: str) -> str:
    """Return output of a program for a terminal: colours stay, everything else that steers is written out."""
    return _HOSTILE_IN_LOGS.sub(lambda found: found[1] or _written(found[0]), text)


def _written(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004
