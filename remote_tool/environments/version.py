"""Python versions as people write them."""

from __future__ import annotations

# The supervisor runs on the environment's Python.
OLDEST = (3, 8)


def version_matches(version: str, wanted: str) -> bool:
    """Return whether a version matches a possibly partial request: 3.11.2 matches 3.11, but not 3.1."""
    return version.split(".")[: wanted.count(".") + 1] == wanted.split(".")


def is_too_old(version: str) -> bool:
    """Return whether a version is too old for the supervisor."""
    return tuple(int(part) for part in version.split(".")[:2]) < OLDEST
