"""Parse untrusted JSON: ambiguous or deeply nested documents are refused."""

from __future__ import annotations

import math

from remote_tool.protocol.lean import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple


def parse(text: bytes) -> Any:  # noqa: ANN401 - any document
    """Return the value of a document.

    Raises:
        ValueError: Not valid UTF-8 or JSON, too deeply nested, a duplicate key, or an invalid number.
    """
    try:
        return json.loads(text.decode("utf-8"), _RULES)
    except RecursionError:
        raise ValueError("nested too deeply") from None


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


_RULES = json.Rules(constant=_refuse, number=_finite, pairs=_without_duplicates)
