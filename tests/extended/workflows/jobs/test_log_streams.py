"""What comes home of a job's output has a bound, and what does not come is said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.errors import JobError
from remote_tool.protocol.streams import MOST_STREAMS
from remote_tool.workflows.events import Event, Notice
from remote_tool.workflows.selection import JobSelection
from remote_tool.workspace import Hooks

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.workflows.jobs.follow import Chunk

MB = 1_000_000


def listening(root: Path, told: list[str]) -> Workspace:
    """Return the workspace, with what users are told."""

    def report(event: Event) -> None:
        if isinstance(event, Notice):
            told.append(event.text)

    return Workspace.find(root, Hooks(report=report))


@pytest.mark.row(26, 76)
def test_a_huge_sparse_file_is_pulled_as_a_hole_and_reported(shared_project: Path) -> None:
    told: list[str] = []
    workspace = listening(shared_project, told)
    bomb = "echo before; truncate -s 1T ../project/.jobs/$REMOTE_TOOL_JOB_ID/job.out; echo after"
    job = workspace.start("first", bomb, sync=False)
    shown: list[Chunk] = []
    answer = workspace.follow_jobs(JobSelection(jobs=(job.id,), stopped=True), shown.append)
    assert not answer.errors
    text = b"".join(chunk.data for chunk in shown).replace(b"\0", b"")
    assert text == b"before\nafter\n"
    copy = workspace.config.local.job(job.id) / "job.out"
    assert copy.stat().st_size > 2**40
    assert copy.stat().st_blocks * 512 < MB
    (notice,) = [text for text in told if "dropped by log_limit" in text]
    assert f"job {job.job.key}: 1,099,511," in notice


@pytest.mark.row(76)
def test_files_over_the_limit_are_not_pulled_and_are_reported(shared_project: Path) -> None:
    """As from a server that never stops sending."""
    workspace = Workspace.find(shared_project)
    job = workspace.start("first", f"head -c {8 * MB} /dev/zero | tr '\\0' y", sync=False)
    job.wait(300)
    careful = Workspace(replace(workspace.config, log_limit=2 * MB))
    answer = careful.pull_logs(JobSelection(jobs=(job.id,), stopped=True))
    assert isinstance(answer.errors["first"], JobError)
    assert f"sent more output of job {job.job.key} than log_limit allows" in str(answer.errors["first"])
    copy = workspace.config.local.job(job.id) / "job.out"
    assert 4 * MB < copy.stat().st_size < 8 * MB
    # What is missing can still come.
    assert not workspace.pull_logs(JobSelection(jobs=(job.id,), stopped=True)).errors
    assert copy.read_bytes() == b"y" * 8 * MB


@pytest.mark.row(76)
@pytest.mark.slow
def test_of_very_many_output_files_the_first_come_home_and_this_is_said(shared_project: Path) -> None:
    told: list[str] = []
    workspace = listening(shared_project, told)
    many = MOST_STREAMS + 500
    folder = ".jobs/$REMOTE_TOOL_JOB_ID/ranks/run/attempt_0"
    command = f"mkdir -p {folder}; cd {folder}; mkdir $(seq {many}); for i in $(seq {many}); do : > $i/stdout.log; done"
    job = workspace.start("second", command, sync=False)
    job.wait(300)
    answer = workspace.pull_logs(JobSelection(jobs=(job.id,), stopped=True))
    assert not answer.errors
    assert f"job {job.job.key}: only {MOST_STREAMS} of its output files are pulled" in told
