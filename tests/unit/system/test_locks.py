"""One program at a time holds a lock, and whoever waits for it too long hears so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.system.locks import lock, unlock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(122)
def test_a_lock_that_another_one_holds_is_refused_when_time_is_up_and_free_after_it(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    first, second = (os.open(tmp_path / "lock", os.O_RDWR) for _ in range(2))
    lock(first)
    with pytest.raises(BlockingIOError, match="another program holds its lock"):
        lock(second)
    unlock(first)
    lock(second)
    unlock(second)
