"""Tests that `make test` leaves out unless they are picked; `make test-all` runs them."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test of this folder, and the case that is picked of a test with many."""
    item.add_marker("extended")
    case = item.get_closest_marker("picked_case")
    if case is not None and isinstance(item, pytest.Function) and item.callspec.id == case.args[0]:
        item.add_marker("picked")
