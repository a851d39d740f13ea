"""Each work of the benchmarks runs, at a tiny size."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.contest import BY_HAND, OURS, hold
from benchmarks.field import Field
from benchmarks.works import PLANS, jobs, syncs

if TYPE_CHECKING:
    from collections.abc import Iterator


def quiet(_text: str) -> None:
    """Print nothing."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path, which a socket in it needs."""
    path = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    yield path
    shutil.rmtree(path)


# Works of one server that take seconds because of what they wait for are left out.
SMALL = sorted({key for key, plan in PLANS.items() if plan.servers == 1} - {"launch-1", "print", "tail"})


@pytest.mark.slow
@pytest.mark.parametrize("key", SMALL)
def test_a_small_work_is_done_by_us_and_by_hand(key: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncs, "SMALL_FILES", 20)
    monkeypatch.setattr(syncs, "BIG_BYTES", 2_000_000)
    monkeypatch.setattr(jobs, "JOBS_PER_SERVER", 2)
    monkeypatch.setattr(jobs, "FINISHED", 50)
    with Field(folder / "field", PLANS[key].servers) as field:
        result = hold(PLANS[key].make(field), rounds=1, told=quiet)
    assert result.problems == {}
    assert all(cost > 0 for costs in result.costs.values() for cost in costs)
    assert OURS in result.costs
    assert result.work.against in {"", BY_HAND, "its rsync", "labml_remote"}
