"""Tests of pure functions: whatever would start a process, open a connection or sleep fails its test."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# As Python's own audit events name them.
_REFUSED = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
    "time.sleep",
}
_is_in_test = False


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _is_in_test and event in _REFUSED:
        raise AssertionError(f"a test in tests/unit calls {event}{arguments!r}: it belongs in tests/extended")


# A hook stays until the end of the process.
sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _only_pure(_nothing_redacted: None) -> Iterator[None]:
    """Refuse these calls from the beginning of a test to its end."""
    global _is_in_test  # noqa: PLW0603 - a hook has no other way to know
    _is_in_test = True
    yield
    _is_in_test = False
