"""Sweeps and fan-outs do each part once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk


def begin(desk: Desk, kind: str, ran: Path) -> str:
    """Start three parts that note that they ran, and return the name of the work when they have ended."""
    words = {
        "sweep": ("helper-sweep", "--cmd", f"echo {{n}} >> {ran}", "--grid", "n=1..3", "--per-server", "3"),
        "fan-out": ("helper-fan-out", "--cmd", f"echo {{shard}} >> {ran}", "--total", "3", "--per-server", "3"),
    }
    started = json.loads(desk.does(*words[kind], "--no-sync", "--json"))
    until(lambda: all(job["state"] == "succeeded" for job in desk.jobs()), "all have ended")
    (launch_id,) = {job["launch_id"] for job in started["jobs"]}
    return str(launch_id)


@pytest.mark.parametrize("kind", ["sweep", "fan-out"])
@pytest.mark.parametrize("removing", ["clean", "one job", "keep_jobs"])
def test_what_is_done_is_not_done_again_after_its_jobs_were_removed(
    desk: Desk, tmp_path: Path, kind: str, removing: str
) -> None:
    ran = tmp_path / "ran"
    name = begin(desk, kind, ran)
    if removing == "keep_jobs":
        desk.configure(keep_jobs=1)
        desk.does("job-run", "--no-sync", "--cmd", "true")
        left = 1
    elif removing == "one job":
        desk.does("clean", "--yes", "--job", "2")
        left = 2
    else:
        desk.does("clean", "--yes")
        left = 0
    of_work = [job for job in desk.jobs() if job["launch_id"] == name]
    assert len(of_work) == left
    said = json.loads(desk.does(f"helper-{kind}", "--resume", name, "--no-sync", "--json"))
    assert said["jobs"] == [] if kind == "sweep" else len(said["jobs"]) == left
    assert said[kind.replace("-", "_")]["done"] == [0, 1, 2]
    assert len(ran.read_text().splitlines()) == 3
    if kind == "sweep":
        shown = json.loads(desk.does("sweep-show", name, "--json"))["sweep"]["combinations"]
        assert [each["state"] for each in shown] == ["succeeded"] * 3
