"""What a program does with the local registry, step by step; each step that is done is told on stdout."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from remote_tool.errors import JobError
from remote_tool.jobs.job import Job, JobSpec, JobState
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.registry import Registry

FAILED = 1
# Written in pieces to each stream, in this order.
PIECES = (b"first\n", b"second\n", b"third\n")
STREAMS = ("out", "ranks/0/0/err")


def run(folder: str, first: str, second: str, foreign: str) -> int:
    """Create two jobs, adopt one, follow the first to its end; the ids are given."""
    try:
        _work(Path(folder), first, second, foreign)
    except JobError as error:
        _tell(f"error {error}")
        return FAILED
    return 0


def _work(folder: Path, first: str, second: str, foreign: str) -> None:
    registry = Registry(folder)
    job, other = registry.create([JobSpec(first, "one", "python train.py"), JobSpec(second, "two", "sleep 60")])
    _tell("created")
    registry.adopt([Job(key=0, id=foreign, server="one", command="make", state=JobState.RUNNING)])
    _tell("adopted")
    running = [replace(each, state=JobState.RUNNING, pid=7) for each in (job, other)]
    registry.update(running)
    _tell("running")
    logs = LogFolder(folder / first)
    for stream in STREAMS:
        offset = 0
        for piece in PIECES:
            logs.write(stream, offset, piece)
            offset += len(piece)
            _tell(f"log {stream} {offset}")
    registry.update([replace(running[0], state=JobState.FAILED, exit_code=3, logs_complete=True)])
    _tell("failed")
    logs.reset("out")
    _tell("reset")


def _tell(what: str) -> None:
    os.write(1, f"{what}\n".encode())
