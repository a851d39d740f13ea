"""``typing.NamedTuple`` without typing, whose import would take 7 ms of a server's processor for each request.

The modules that run on servers import typing for the type checker alone.
"""

from __future__ import annotations

import collections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - it is what others import from here
else:

    class _OfAnnotations(type):
        def __new__(cls, name: str, bases: Tuple[type, ...], namespace: Dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, namespace)
            fields = namespace.pop("__annotations__")
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            shape = collections.namedtuple(name, fields, defaults=defaults)  # noqa: PYI024 - that is the point
            return type(name, (shape,), {"__slots__": (), **namespace})

    class NamedTuple(metaclass=_OfAnnotations):
        """A tuple whose fields are the annotations of the class."""
