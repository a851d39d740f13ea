"""Long lists of records, a part at a time."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.sync import blocks
from remote_tool.transport.sync.blocks import Blocks, in_ranges

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(185)
@pytest.mark.parametrize(("block", "part"), [(64, 200), (1 << 16, 1 << 20)])
def test_all_records_come_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, part: int
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", block)
    monkeypatch.setattr(blocks, "_RANGE", part)
    names = [b"folder-%d/file-%03d" % (number % 3, number * 37 % 101) for number in range(101)]
    records = [name + b"\0of it" for name in names]
    (tmp_path / "records").write_bytes(b"".join(record + b"\0\0" for record in records))
    keys = {name + b"\0f" for name in names[::7]}
    with (tmp_path / "records").open("rb") as file:
        parts = list(in_ranges(Blocks(file.fileno(), b"\0\0"), [b"".join(key + b"\0\0" for key in keys)]))
    assert list(chain.from_iterable(some for some, _ in parts)) == sorted(records)
    assert set(chain.from_iterable(found for _, found in parts)) == keys
