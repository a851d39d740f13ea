"""Tests of pure functions: whatever would start a process, open a connection or sleep fails its test."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pytest

from remote_tool import redaction

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
}
_is_in_test = False


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _is_in_test and event in _REFUSED:
        _fail(event, *arguments)


def _fail(name: str, *arguments: object) -> NoReturn:
    raise AssertionError(f"a test in tests/unit calls {name}{arguments!r}: it belongs in tests/extended")


# A hook stays until the end of the process.
sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _only_pure(_nothing_redacted: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse these calls from the beginning of a test to its end."""
    # Python has an event for it since 3.13.
    monkeypatch.setattr("time.sleep", partial(_fail, "time.sleep"))
    global _is_in_test  # noqa: PLW0603 - a hook has no other way to know
    _is_in_test = True
    yield
    _is_in_test = False


@pytest.fixture(autouse=True)
def _nothing_redacted() -> Iterator[None]:
    """Values of an earlier test are nobody's secret."""
    redaction.forget()
    yield
    redaction.forget()
