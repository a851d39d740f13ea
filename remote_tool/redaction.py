"""Hide secrets in messages, errors and records: values of ``--env`` and ``env:``, and passwords.

An answer of a server may quote them. The output and the logs of jobs are the user's, and are not changed.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORTEST = 8  # a shorter value occurs in texts by chance
SHORTEST_WORD = 12
SHORTEST_PIECE = 24
LONGEST_SEARCHED = 8192  # each letter is compared with each long value, and no message is longer
REDACTED = "***"
_BETWEEN_WORDS = re.compile(r"""[\s"'`$(){};&|<>\\]+""")

_values: dict[str, set[str]] = {}
_never_redacted: set[str] = set()
_forms: tuple[str, ...] = ()


def hide(values: Iterable[str]) -> None:
    """Redact these values from now on, also as a shell or JSON quotes them, and their lines and longer words."""
    new = [value for value in values if len(value) >= SHORTEST and value not in _values]
    if new:
        _values.update((value, _forms_of(value)) for value in new)
        _collect_forms()


def never_redact(texts: Iterable[str]) -> None:
    """Exempt texts, such as names and addresses of servers, even if a variable has such a value."""
    _never_redacted.update(texts)
    _collect_forms()


def forget() -> None:
    """Stop redacting anything."""
    _values.clear()
    _never_redacted.clear()
    _collect_forms()


def redact(text: str) -> str:
    """Return a text of ours without the values, also where the beginning or end of a long one is missing."""
    forms = _forms
    for form in forms:
        text = text.replace(form, REDACTED)
    if len(text) > LONGEST_SEARCHED:
        return text
    return _without_pieces(text, [form for form in forms if len(form) > SHORTEST_PIECE])


def redact_lines(data: bytes) -> bytes:
    """Return whole lines of output of ours without the values."""
    if not _forms:
        return data
    text = data.decode(errors="surrogateescape")
    for form in _forms:
        text = text.replace(form, REDACTED)
    return text.encode(errors="surrogateescape")


def _collect_forms() -> None:
    global _forms  # noqa: PLW0603 - replaced as a whole, as other threads read it
    forms = {form for value, forms in list(_values.items()) if value not in _never_redacted for form in forms}
    _forms = tuple(sorted(forms, key=len, reverse=True))


def _forms_of(value: str) -> set[str]:
    printed = "".join(letter if letter.isprintable() else " " for letter in value)
    lines = [line.strip() for line in value.splitlines() if len(line.strip()) >= SHORTEST]
    # A shell that takes a request for a command names the words that it does not find.
    words = [word for word in _BETWEEN_WORDS.split(value) if len(word) >= SHORTEST_WORD]
    plain = [value, printed, *lines, *words]
    quoted = [
        form
        for text in plain
        for form in (
            text,
            json.dumps(text)[1:-1],
            json.dumps(text, ensure_ascii=False)[1:-1],
            shlex.quote(text).removeprefix("'").removesuffix("'"),
            repr(text)[1:-1],
            ascii(text)[1:-1],
        )
    ]
    return {form for form in quoted if len(form) >= SHORTEST}


def _without_pieces(text: str, forms: list[str]) -> str:
    """Replace each part of a text that is also a part of a longer form."""
    for form in forms:
        start = 0
        while start + SHORTEST_PIECE <= len(text):
            end = start + SHORTEST_PIECE
            if text[start:end] not in form:
                start += 1
                continue
            while end < len(text) and text[start : end + 1] in form:
                end += 1
            text = text[:start] + REDACTED + text[end:]
            start += len(REDACTED)
    return text
