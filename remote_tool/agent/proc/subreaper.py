"""Become the process that inherits orphaned descendants."""

from __future__ import annotations

try:
    # Loaded here once, not in every fork.
    import ctypes

    _library = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):
    # Some Pythons lack ctypes; a job runs all the same.
    _library = None  # type: ignore[assignment]

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Become the parent of orphaned descendants; return whether the system allowed it."""
    try:
        return bool(_library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
