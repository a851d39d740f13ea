"""Shows what jobs print while they are followed, and how they ended."""

from __future__ import annotations

from contextlib import closing, nullcontext
from textwrap import indent
from typing import TYPE_CHECKING

from remote_tool.cli import streams
from remote_tool.cli.console import Console, inform, leave_unless_ok, show_failures
from remote_tool.cli.log_lines import ExactOutput, LabelledOutput
from remote_tool.cli.plain import one_line, visible
from remote_tool.cli.tables import how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from remote_tool import FollowOptions, JobSelection, Workspace
    from remote_tool.cli.live_status import LiveStatus
    from remote_tool.workflows.failures import RankFailure
    from remote_tool.workflows.follow_jobs import Chunk, FollowAnswer, OnChunk

    Following = Callable[[OnChunk], FollowAnswer]


def follow(workspace: Workspace, selection: JobSelection, options: FollowOptions, *, pass_on: bool = False) -> None:
    """Print what comes; with pass_on, end with the jobs' own exit status."""
    status = workspace.config.status if options.wait else None
    answer = show_until_end(lambda show: workspace.follow_jobs(selection, show, options), selection, status=status)
    pulled = bring_artifacts(workspace, answer) if options.wait else 0
    failed = answer.exit_code if answer.errors else 0
    leave_unless_ok((answer.exit_code if pass_on else failed) or pulled)


def show_until_end(
    following: Following, selection: JobSelection, *, status: Mapping[str, str] | None = None
) -> FollowAnswer:
    """Print what a following hands on, then how it ended.

    On a terminal a line at the bottom says meanwhile how far the jobs are, by these patterns and the usual ones; None
    leaves it out.
    """
    output = Output()
    try:
        with closing(output), _live_status(status) as live:
            answer = following(_to_both(output, live))
    except KeyboardInterrupt:
        inform(f"\nstill running; to follow again: remote-tool job-tail{output.selected or _selected(selection)}")
        raise
    show_end(answer)
    return answer


def bring_artifacts(workspace: Workspace, answer: FollowAnswer) -> int:
    """Bring home the files of jobs that have ended, and return the exit status of that."""
    ended = [job for job in answer.jobs if job.state.is_finished and job.server not in answer.errors]
    if not any(job.artifacts and not job.artifacts_complete for job in ended):
        return 0
    with Console(activity="bringing artifacts home") as console:
        pulled = console.rebind(workspace).pull_artifacts(ended)
    show_failures(pulled.errors)
    return pulled.exit_code


def _live_status(patterns: Mapping[str, str] | None) -> AbstractContextManager[LiveStatus | None]:
    if patterns is None or not streams.can_hold_line():
        return nullcontext()
    from remote_tool.cli.live_status import LiveStatus  # noqa: PLC0415 - in a pipe Rich need not load

    return LiveStatus(patterns)


def _to_both(output: Output, live: LiveStatus | None) -> OnChunk:
    if live is None:
        return output.show

    def show(chunk: Chunk) -> None:
        output.show(chunk)
        live.note(chunk)

    return show


class Output:
    """Labels lines when there is more than one source."""

    def __init__(self) -> None:
        self._exact = ExactOutput()
        self._labelled = LabelledOutput()
        self._keys: set[int] = set()

    @property
    def selected(self) -> str:
        """The options that select what was shown."""
        return "".join(f" --job {key}" for key in sorted(self._keys))

    def show(self, chunk: Chunk) -> None:
        """Print a chunk: as it is when it has no label."""
        self._keys.add(chunk.job.key)
        stream = streams.ERR if chunk.stream.endswith("err") else streams.OUT
        if chunk.label:
            self._labelled.write(chunk.label, stream, chunk.data, f"{chunk.job.id} {chunk.stream}")
        else:
            self._exact.write("", stream, chunk.data)

    def close(self) -> None:
        """Print what is left."""
        self._exact.close()
        self._labelled.close()


def show_end(answer: FollowAnswer) -> None:
    """Say how every job ended, and of a launch which rank failed first and why."""
    for job in answer.jobs:
        inform(f"job {job.key} on {job.server}: {how_it_ended(job)}")
    if answer.first_failure is not None and any(job.launch_id for job in answer.jobs):
        _show_failure(answer.first_failure)
    show_failures(answer.errors)


def _show_failure(failure: RankFailure) -> None:
    host = f" (host {failure.host})" if failure.host else ""
    parts = [failure.server]
    if failure.rank is not None:
        parts.append(f"rank {failure.rank}{host}")
    if failure.signal or failure.exit_code is not None:
        parts.append(f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}")
    inform(f"first to fail: {', '.join(parts)}: {one_line(failure.message)}")
    if failure.traceback:
        # Indented: none of its lines looks like a line of ours.
        inform(indent(visible(failure.traceback), "  "))


def _selected(selection: JobSelection) -> str:
    return "".join(f" --job {word}" for word in selection.jobs) + "".join(f" --tag {tag}" for tag in selection.tags)
