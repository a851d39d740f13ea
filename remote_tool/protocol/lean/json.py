"""JSON with only the C functions of the json package.

The package itself loads re, enum and more that these functions do not need, and takes as long as half of a short
answer. It is the fallback where a Python lacks these functions or has different ones.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

_BLANKS = " \t\n\r"


class Rules:
    """Callbacks for the parts of a document; the C function expects these attributes."""

    strict = True
    parse_int = int
    object_hook = None

    def __init__(
        self,
        *,
        constant: Callable[[str], Any] = float,
        number: Callable[[str], float] = float,
        pairs: Optional[Callable[[List[Tuple[str, Any]]], Dict[str, Any]]] = None,
    ) -> None:
        """Initialize.

        Args:
            constant: Returns the value of ``NaN``, ``Infinity`` or ``-Infinity``.
            number: Returns the float of a text.
            pairs: Returns the object of members, in order.
        """
        self.parse_constant = constant
        self.parse_float = number
        self.object_pairs_hook = pairs
        self.memo: Dict[str, str] = {}


_USUAL = Rules()


def loads(text: str, rules: Rules = _USUAL) -> Any:  # noqa: ANN401 - any document
    """Return the value of a document.

    Raises:
        ValueError: Not valid JSON.
        RecursionError: It is nested too deeply.
    """
    make_scanner = getattr(_c_functions(), "make_scanner", None)
    if make_scanner is not None:
        begin = len(text) - len(text.lstrip(_BLANKS))
        try:
            value, end = make_scanner(rules)(text, begin)
        except (StopIteration, SystemError):
            # Invalid JSON: without the package, the function cannot create its error and raises SystemError.
            end = begin
        if end > begin and not text[end:].strip(_BLANKS):
            return value
    try:
        import json  # noqa: PLC0415 - what is wrong, it can say
    except ImportError:
        # Another environment has replaced the one in which a job's supervisor started.
        raise ValueError("not valid JSON") from None
    return json.loads(
        text,
        parse_constant=rules.parse_constant,
        parse_float=rules.parse_float,
        object_pairs_hook=rules.object_pairs_hook,
    )


def dumps(value: Any) -> str:  # noqa: ANN401 - any document
    """Return a document in ASCII without spaces.

    Raises:
        ValueError: It contains NaN or infinity, or itself.
        TypeError: It contains a type that JSON lacks.
    """
    functions = _c_functions()
    try:
        encode = functions.make_encoder(
            {}, _refuse, functions.encode_basestring_ascii, None, ":", ",", False, False, False
        )
    except (AttributeError, TypeError):
        import json  # noqa: PLC0415 - for the few Pythons that lack it

        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return "".join(encode(value, 0))


def _c_functions() -> Any:  # noqa: ANN401 - a module
    try:
        import _json  # noqa: PLC0415 - a Python may lack it
    except ImportError:
        return None
    return _json


def _refuse(value: object) -> None:
    raise TypeError(f"{type(value).__name__} is not JSON")
