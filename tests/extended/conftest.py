"""Tests that `make test` leaves out unless they are picked; `make test-all` runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool import redaction
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.extended.configuration import Configuration


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test of this folder."""
    item.add_marker("extended")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Module, name: str) -> Generator[None, object, object]:
    """Mark the case that is picked of a test with many; fail when there is none with this id."""
    made = yield
    cases = [item for item in made if isinstance(item, pytest.Function)] if isinstance(made, list) else []
    for wanted in {mark.args[0] for item in cases for mark in item.iter_markers("picked_case")}:
        picked = [item for item in cases if item.callspec.id == wanted]
        if not picked:
            raise collector.CollectError(f"{name}: no case has the id {wanted!r} of picked_case")
        picked[0].add_marker("picked")
    return made


@pytest.fixture(autouse=True)
def _nothing_redacted() -> Iterator[None]:
    """Values of an earlier test are nobody's secret."""
    redaction.forget()
    yield
    redaction.forget()


@pytest.fixture
def configuration() -> Configuration:
    """A function that configures servers, see :func:`make_configuration`."""
    return make_configuration
