"""Tests that `make test` leaves out unless they are picked; `make test-all` runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test of this folder."""
    item.add_marker("extended")
