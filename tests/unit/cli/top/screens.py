"""The screen of top with two servers, a launch and other jobs, on file at two widths.

``python -m tests.unit.cli.top.screens`` writes the files again.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.cli.top.board import Board
from remote_tool.cli.top.screen import TopApp
from remote_tool.errors import ConnectError
from remote_tool.jobs.job import Job, JobState
from remote_tool.workflows.servers.samples import GpuLease, GpuProcess, GpuSample, JobRanks, Sample
from remote_tool.workflows.servers.top import JobsChanged, Missed, Progressed, Sampled

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTHS = (50, 80, 200)
HEIGHT = 36
GIB = 1024**3


class NoActions:
    """The keys do nothing."""

    def log(self, job: Job, show: Callable[[str], None]) -> Callable[[], None]:
        return lambda: show(str(job.key))

    def attach(self, job: Job) -> None: ...

    def stacks(self, job: Job) -> str:
        return str(job.key)

    def kill(self, job: Job) -> str:
        return str(job.key)


def file_of(width: int) -> Path:
    """Return the file of a width."""
    return Path(__file__).parent / f"screen_{width}.txt"


def text_of(app: TopApp) -> str:
    """Return the screen as text."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in lines)


async def drawn(width: int, wanted: str | None = None) -> str:
    """Draw the screen, for a while, or until it is as wanted: Textual draws the footer after the rest."""
    app = TopApp(_board(), NoActions())
    deadline = time.monotonic() + (3 if wanted is None else 60)
    async with app.run_test(size=(width, HEIGHT)) as pilot:
        while (text := f"{text_of(app).rstrip()}\n") != wanted and time.monotonic() < deadline:
            await pilot.pause(0.05)
    return text


def _started() -> float:
    """Return a moment that is shown in days and hours, so that it does not change while the screen is drawn."""
    return time.time() - 3 * 86400 - 90 * 60


def _board() -> Board:
    board = Board(("gpu1", "gpu2", "gpu3"), clock=lambda: 0.0)
    for load in (5.0, 40.0, 80.0, 97.0):
        for server, job in (("gpu1", "id-1"), ("gpu2", "id-2")):
            board.apply(Sampled(server, _sample(load, job, first_rank=0 if server == "gpu1" else 2)))
    board.apply(Missed("gpu3", ConnectError("gpu3: refused the connection on port 22")))
    launch = {"launch_id": "20261121-053000-abcd", "name": "digits", "command": "torchrun train.py --epochs 90"}
    board.apply(
        JobsChanged(
            (
                _job(1, "gpu1", node_rank=0, **launch),
                _job(2, "gpu2", node_rank=1, **launch),
                _job(3, "gpu3", command="python evaluate.py"),
                _job(4, "gpu1", command="python prepare.py", state=JobState.FAILED, ended_at=_started() + 3700),
            )
        )
    )
    for step in range(0, 1000, 20):
        values = {"step": f"{step}/5000", "loss": f"{2.3 / (1 + step / 150):.4f}", "lr": "0.001"}
        board.apply(Progressed("id-1", values))
    return board


def _sample(load: float, job: str, *, first_rank: int) -> Sample:
    users = (GpuProcess(7, 39 * GIB, "ann", job),), (GpuProcess(8, 39 * GIB, "ann", job), GpuProcess(9, GIB, "ben", ""))
    leases = GpuLease("ann", job, "digits", _started()), GpuLease("ben", "id-9", "eval", _started())
    gpus = tuple(
        GpuSample(number, "H100", load, 40 * GIB, 80 * GIB, 61.0, 512.0, 700.0, users[number], leases[number])
        for number in range(2)
    )
    ranks = JobRanks(job, (first_rank, first_rank + 1), (), "")
    return Sample(12.5, 64, 3.5, 512 * GIB, 412 * GIB, 1000 * GIB, 700 * GIB, gpus, ranks=(ranks,))


def _job(key: int, server: str, **fields: object) -> Job:
    known = {"state": JobState.RUNNING, "started_at": _started(), **fields}
    return Job(key=key, id=f"id-{key}", server=server, **known)  # type: ignore[arg-type]


if __name__ == "__main__":
    for each in WIDTHS:
        file_of(each).write_text(asyncio.run(drawn(each)))
