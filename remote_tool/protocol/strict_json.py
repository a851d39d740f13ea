"""JSON of somebody who is not trusted: what a parser may read in two ways, or only with a deep stack, is refused."""

from __future__ import annotations

import math

from remote_tool.protocol.lean import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple


def parse(text: bytes) -> Any:  # noqa: ANN401 - any document
    """Return what a document says.

    Raises:
        ValueError: It is no UTF-8 or no JSON, is nested too deep, has a key twice, or a number that is none.
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
