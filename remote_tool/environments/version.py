"""Versions of Python as people write them."""

from __future__ import annotations

# The supervisor runs on the environment's Python.
OLDEST = (3, 8)


def version_matches(version: str, wanted: str) -> bool:
    """Tell whether a version matches the requested one, as far as that is given: 3.11.2 matches 3.11, 3.1 does not."""
    return version.split(".")[: wanted.count(".") + 1] == wanted.split(".")


def is_too_old(version: str) -> bool:
    """Tell whether a version is too old for the supervisor."""
    return tuple(int(part) for part in version.split(".")[:2]) < OLDEST
