"""Sizes are printed in binary units."""

from __future__ import annotations

import pytest

from remote_tool.readable import readable_size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**3, "5.0 GiB"), (3 * 1024**4, "3.0 TiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert readable_size(size) == text
