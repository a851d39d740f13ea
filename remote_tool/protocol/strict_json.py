"""Strict JSON: an ambiguous or deeply nested document is refused, and none is written."""

from __future__ import annotations

import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple


def parse(text: bytes) -> Any:  # noqa: ANN401 - any document
    """Return the value of a document.

    Raises:
        ValueError: Not valid UTF-8 or JSON, too deeply nested, a duplicate key, or an invalid number.
    """
    try:
        return json.loads(
            text.decode("utf-8"), parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_without_duplicates
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode(value: object) -> bytes:
    """Return a document in ASCII without spaces.

    Raises:
        ValueError: It contains NaN or infinity, or itself.
        TypeError: It contains a type that JSON lacks.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _without_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found
