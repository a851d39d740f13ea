"""Show the output of followed jobs, and how they ended."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import replace
from textwrap import indent
from typing import TYPE_CHECKING

import typer

from remote_tool.cli.output import streams
from remote_tool.cli.output.console import Console, inform, leave_unless_ok, show_failures
from remote_tool.cli.output.log_lines import ExactOutput, LabelledOutput
from remote_tool.cli.output.sanitize import escape_controls, one_line
from remote_tool.cli.tables.jobs import how_it_ended
from remote_tool.jobs.job import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from remote_tool import FollowOptions, JobSelection, LaunchRequest, StartRequest, Workspace
    from remote_tool.cli.status_line import LiveStatus
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.jobs.failures import RankFailure
    from remote_tool.workflows.jobs.follow import Chunk, FollowAnswer, OnChunk
    from remote_tool.workflows.selection import JobsAnswer

    Following = Callable[[OnChunk], FollowAnswer]

_LONE_NODES_HINT = (
    "set num_nodes in Lightning, cpu=True in accelerate without GPUs, or call init_process_group in a loop of your own"
)


def show_problems(answer: JobsAnswer) -> None:
    """Show the records that cannot be read and the servers that failed."""
    for sentence in answer.bad:
        inform(sentence)
    show_failures(answer.errors)


def follow(workspace: Workspace, selection: JobSelection, options: FollowOptions, *, pass_on: bool = False) -> None:
    """Print the output of jobs; with pass_on, exit with the jobs' own status."""
    status = workspace.config.status if options.wait else None
    named = _with_keys(workspace, selection)
    answer = show_until_end(lambda show: workspace.follow_jobs(selection, show, options), named, status=status)
    pull_status = _pull_artifacts(workspace, answer) if options.wait else 0
    leave_unless_ok((answer.exit_code if pass_on else answer.own_exit_code) or pull_status)


def follow_started(workspace: Workspace, request: StartRequest | LaunchRequest, answer: JobsAnswer) -> None:
    """Print the output of jobs that were just started, restart a launch as requested, and exit with their status."""
    from remote_tool import FollowOptions, JobSelection, LaunchRequest  # noqa: PLC0415 - few commands start a launch

    selection = JobSelection(jobs=tuple(job.id for job in answer.jobs), stopped=True, hidden=True)
    # An MPI launch is never restarted: its programs may have run when a port was taken.
    if not isinstance(request, LaunchRequest) or request.launcher == "mpi":
        follow(workspace, selection, FollowOptions(started=not answer.errors), pass_on=True)
        return
    named = _with_keys(workspace, selection)
    followed = show_until_end(
        lambda show: workspace.follow_launch(request, answer.jobs, show), named, status=workspace.config.status
    )
    pull_status = _pull_artifacts(workspace, followed)
    leave_unless_ok(followed.exit_code or pull_status)


def show_until_end(
    following: Following, selection: JobSelection, *, status: Mapping[str, str] | None = None
) -> FollowAnswer:
    """Print output as it arrives, then how each job ended.

    On a terminal, a line at the bottom shows progress, found by the patterns of ``status`` and the default ones; if
    ``status`` is None, there is no line.
    """
    output = Output()
    try:
        with closing(output), _live_status(status) as live:
            answer = following(_to_both(output, live))
    except KeyboardInterrupt:
        inform(f"\nstill running; to follow again: remote-tool job-tail{output.selected or _selected(selection)}")
        raise typer.Exit(streams.INTERRUPTED) from None
    show_end(answer)
    return answer


def _pull_artifacts(workspace: Workspace, answer: FollowAnswer) -> int:
    """Fetch the artifacts of jobs that have ended; return the exit status."""
    ended = [job for job in answer.jobs if job.state.is_finished and job.server not in answer.errors]
    if not any(job.artifacts and not job.artifacts_complete for job in ended):
        return 0
    with Console(activity="fetching artifacts") as console:
        pulled = console.rebind(workspace).pull_artifacts(ended)
    show_failures(pulled.errors)
    return pulled.exit_code


def _live_status(patterns: Mapping[str, str] | None) -> AbstractContextManager[LiveStatus | None]:
    if patterns is None or not streams.can_hold_line():
        return nullcontext()
    from remote_tool.cli.status_line import LiveStatus  # noqa: PLC0415 - in a pipe Rich need not load

    return LiveStatus(patterns)


def _to_both(output: Output, live: LiveStatus | None) -> OnChunk:
    if live is None:
        return output.show

    def show(chunk: Chunk) -> None:
        output.show(chunk)
        live.note(chunk)

    return show


class Output:
    """Prints the output of jobs; lines have labels when there is more than one source."""

    def __init__(self) -> None:
        self._exact = ExactOutput()
        self._labeled = LabelledOutput()
        self._keys: set[int] = set()

    @property
    def selected(self) -> str:
        """The words of a command that select the jobs shown so far."""
        return "".join(f" {key}" for key in sorted(self._keys))

    def show(self, chunk: Chunk) -> None:
        """Print a chunk: as it is when it has no label."""
        self._keys.add(chunk.job.key)
        stream = streams.ERR if chunk.stream.endswith("err") else streams.OUT
        if chunk.label:
            self._labeled.write(chunk.label, stream, chunk.data, f"{chunk.job.id} {chunk.stream}")
        else:
            self._exact.write("", stream, chunk.data)

    def close(self) -> None:
        """Print incomplete last lines."""
        self._exact.close()
        self._labeled.close()


def show_end(answer: FollowAnswer) -> None:
    """Show how every job ended, and for a launch the first rank that failed, with its error."""
    for job in answer.jobs:
        inform(f"job {job.key} on {job.server}: {how_it_ended(job)}")
    if answer.first_failure is not None and any(job.launch_id for job in answer.jobs):
        _show_failure(answer.first_failure)
    _warn_of_lone_nodes(answer.jobs)
    show_failures(answer.errors)


def _warn_of_lone_nodes(jobs: Sequence[Job]) -> None:
    """Warn when the nodes of a successful launch did not train together: nothing else shows it."""
    launches: dict[str, list[Job]] = {}
    for job in jobs:
        launches.setdefault(job.launch_id, []).append(job)
    for launch_id, nodes in launches.items():
        is_alone = all(job.trained_alone and job.state is JobState.SUCCEEDED for job in nodes)
        if launch_id and len(nodes) > 1 and is_alone:
            names = ", ".join(job.server for job in nodes)
            inform(f"warning: no process on {names} joined a process group, so each trained alone; {_LONE_NODES_HINT}")


def _show_failure(failure: RankFailure) -> None:
    where = failure.server if failure.rank is None else f"{failure.server}, rank {failure.rank}"
    inform(f"first to fail: {where}: {one_line(_how_it_failed(failure))}")
    if failure.traceback:
        # Indented: none of its lines looks like a line of ours.
        inform(indent(escape_controls(failure.traceback), "  "))
    if failure.hint:
        inform(f"hint: {failure.hint}")


def _how_it_failed(failure: RankFailure) -> str:
    """Return the error of a rank; its exit code follows if it says more than the error."""
    if failure.exit_code is None:
        return failure.message or "reason unknown"
    code = f"exit code {failure.exit_code}"
    if not failure.message:
        return code
    # Python exits with 1 after any exception.
    says_nothing = failure.exit_code == 1 or failure.message.endswith(code)
    return failure.message if says_nothing else f"{failure.message} ({code})"


def _with_keys(workspace: Workspace, selection: JobSelection) -> JobSelection:
    """Return a selection with keys in place of ids, as people type it."""
    keys = {job.id: str(job.key) for job in workspace.known_jobs(selection.jobs)}
    return replace(selection, jobs=tuple(keys.get(word, word) for word in selection.jobs))


def _selected(selection: JobSelection) -> str:
    return "".join(f" {word}" for word in selection.jobs) + "".join(f" --tag {tag}" for tag in selection.tags)
