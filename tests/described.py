"""Whether docs/reference.md names what a JSON document has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"


def undescribed(document: object) -> set[str]:
    """Return the keys that the page does not name."""
    text = REFERENCE.read_text()
    return {key for key in _keys(document) if f'"{key}"' not in text}


def _keys(document: object) -> Iterator[str]:
    if isinstance(document, dict):
        yield from document
        document = list(document.values())
    for each in document if isinstance(document, list) else ():
        yield from _keys(each)
