"""``contextlib.suppress`` without contextlib, whose import takes as long as five modules of ours."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import suppress as suppress  # noqa: PLC0414 - it is what others import from here
    from typing import Optional, Type
else:

    class suppress:  # noqa: N801 - its name in contextlib
        """Suppresses these errors in a block."""

        def __init__(self, *errors: Type[BaseException]) -> None:
            self._errors = errors

        def __enter__(self) -> None:
            """Do nothing."""

        def __exit__(self, kind: Optional[Type[BaseException]], error: object, traceback: object) -> bool:
            return kind is not None and issubclass(kind, self._errors)
