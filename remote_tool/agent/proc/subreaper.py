"""Being the parent that orphans fall to."""

from __future__ import annotations

try:
    # Here, and not when it is needed: it is needed in every fork.
    import ctypes

    _library = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):
    # Some Pythons lack it, and then a job runs all the same.
    _library = None  # type: ignore[assignment]

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make orphans below this process its children; whether the system allowed it."""
    try:
        return bool(_library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
