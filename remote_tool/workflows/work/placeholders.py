"""The placeholders in commands: ``{shard}`` and ``{item}`` of a fan-out, ``{lr}`` of a sweep.

The two read braces differently. In a fan-out every brace counts, as in a format string of Python: ``{{`` is a literal
one, and ``${HOME}`` is refused. In a sweep only a single word in braces is a placeholder: ``${HOME}``, ``{"lr": 1}``
and ``{a,b}`` stay as they are, and ``{{word}}`` is a literal ``{word}``.
"""

from __future__ import annotations

import re
import shlex
from string import Formatter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    # Literal text and the placeholder after it, as written between its braces; None at the end.
    Part = tuple[str, str | None]

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORD_IN_BRACES = re.compile(rf"(?<!\$)(?:\{{\{{({WORD.pattern})\}}\}}|\{{({WORD.pattern})\}})")


def parse_braces(template: str) -> list[Part]:
    """Split a template of a fan-out.

    Raises:
        ValueError: It has an unmatched brace.
    """
    return [
        (text, None if name is None else f"{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}")
        for text, name, form, conversion in Formatter().parse(template)
    ]


def parse_words(template: str) -> list[Part]:
    """Split the template of a sweep."""
    parts: list[Part] = []
    text, end = "", 0
    for match in _WORD_IN_BRACES.finditer(template):
        text += template[end : match.start()]
        end = match.end()
        if match[2] is None:
            text += f"{{{match[1]}}}"
        else:
            parts.append((text, match[2]))
            text = ""
    return [*parts, (text + template[end:], None)]


def names_in(parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield each placeholder, with all text before it; a ``_`` stands for each earlier placeholder."""
    before = ""
    for text, name in parts:
        before += text
        if name is not None:
            yield name, before
            before += "_"


def is_in_quotes(before: str) -> bool:
    """Return whether the text before a placeholder leaves a quote open."""
    try:
        shlex.split(before)
    except ValueError:
        return not before.endswith("\\")
    return False


def fill(parts: Sequence[Part], values: Mapping[str, str]) -> str:
    """Replace the placeholders."""
    return "".join(text + ("" if name is None else values[name]) for text, name in parts)
