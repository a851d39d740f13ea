"""Shows what jobs print while they are followed, and how they ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from remote_tool.cli.console import inform, leave_unless_ok, show_failures
from remote_tool.cli.log_lines import ExactOutput, LabelledOutput

if TYPE_CHECKING:
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.failures import RankFailure
    from remote_tool.workflows.follow_jobs import Chunk, FollowAnswer, FollowOptions
    from remote_tool.workflows.selection import JobSelection
    from remote_tool.workspace import Workspace


def follow(workspace: Workspace, selection: JobSelection, options: FollowOptions, *, pass_on: bool = False) -> None:
    """Print what comes; with pass_on, end with the jobs' own exit status."""
    output = _Output(options)
    try:
        answer = workspace.follow_jobs(selection, output.show, options)
    except KeyboardInterrupt:
        output.end()
        inform("\nthe job goes on; to see it again: remote-tool job-tail" + _selected(selection))
        raise
    output.end()
    _show_end(answer)
    failed = 0 if not answer.errors else answer.exit_code
    leave_unless_ok(answer.exit_code if pass_on else failed)


class _Output:
    """Labels lines when there is more than one source."""

    def __init__(self, options: FollowOptions) -> None:
        self._one_rank = options.rank is not None
        self._exact = ExactOutput()
        self._labelled = LabelledOutput(sys.stdout.isatty)
        self._first: str | None = None

    def show(self, chunk: Chunk) -> None:
        """Print a chunk: plain while only one plain job speaks."""
        stream = 2 if chunk.stream.endswith("err") else 1
        if self._is_single(chunk):
            self._exact.write("", stream, chunk.data)
        else:
            self._labelled.write(chunk.label, stream, chunk.data, f"{chunk.job.id} {chunk.stream}")

    def end(self) -> None:
        """Print what is left."""
        self._exact.end()
        self._labelled.end()

    def _is_single(self, chunk: Chunk) -> bool:
        self._first = self._first or chunk.job.id
        return self._one_rank or (not chunk.job.launch_id and chunk.job.id == self._first)


def _show_end(answer: FollowAnswer) -> None:
    for job in answer.jobs:
        if job.state.is_finished:
            inform(_ended(job))
    if answer.first_failure is not None and any(job.launch_id for job in answer.jobs):
        _show_failure(answer.first_failure)
    show_failures(answer.errors)


def _ended(job: Job) -> str:
    how = job.signal or (f"exit code {job.exit_code}" if job.exit_code is not None else job.reason)
    return f"job {job.key} on {job.server}: {job.state.value}" + (f", {how}" if job.exit_code != 0 and how else "")


def _show_failure(failure: RankFailure) -> None:
    rank = "before its ranks began" if failure.rank is None else f"rank {failure.rank}"
    host = f" (host {failure.host})" if failure.host else ""
    code = failure.signal or f"exit code {failure.exit_code}"
    inform(f"first to fail: {failure.server}, {rank}{host}, {code}: {failure.message}")
    inform(failure.traceback)


def _selected(selection: JobSelection) -> str:
    return "".join(f" --job {word}" for word in selection.jobs) + "".join(f" --tag {tag}" for tag in selection.tags)
