"""Wheels for servers that are offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extended.workflows.prepare.servers import make_wheel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with tiny_package 1.0, all that the servers' pip and uv can get."""
    folder = tmp_path / "wheels"
    make_wheel(folder)
    return folder
