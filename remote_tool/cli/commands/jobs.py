"""The commands that list, follow, wait for, fetch and annotate jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

import remote_tool
from remote_tool.cli.following import follow, show_problems
from remote_tool.cli.groups import ChosenJobs, ConnectionFlags, NamedJobs
from remote_tool.cli.options import AsJson, Servers, ShowOutput, TagsToFind, complete
from remote_tool.cli.output.console import inform, leave_unless_ok
from remote_tool.cli.output.json_output import jobs_document, print_json
from remote_tool.cli.tables.jobs import print_jobs
from remote_tool.errors import UsageError
from remote_tool.jobs.job import JobState
from remote_tool.readable import counted
from remote_tool.workflows.selection import JobsAnswer, JobSelection, StillRunningError, sort_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool import Workspace

ASKING = "asking servers"
# An unreachable job may run.
STARTED = (JobState.STARTING, JobState.RUNNING, JobState.UNREACHABLE)
# Seconds.
LONGEST_DELAY = 86400
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="FIELD", help="Sort by key, server, state, started or duration; prefix with - to reverse."
    ),
]


def job_list(  # noqa: PLR0913 - one parameter per option
    *,
    jobs: NamedJobs,
    server: Servers = None,
    rsync: Annotated[bool, typer.Option("--rsync", help="Also fetch logs and artifacts.")] = False,
    stopped: Annotated[bool, typer.Option("--stopped", "--all", help="Include jobs that have ended.")] = False,
    running: Annotated[bool, typer.Option("--running", help="List only jobs that have begun and not ended.")] = False,
    hidden: Annotated[bool, typer.Option("--hidden", help="Include jobs with the tag hidden or __hidden__.")] = False,
    tag: TagsToFind = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="List jobs in this state; may be repeated.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, metavar="N", help="List the N newest jobs, running or ended.")
    ] = None,
    sort: Sort = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="Show id and PID too, and all columns in full on a terminal.")
    ] = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """List running jobs with their current state."""
    order = sort or "key"
    sort_jobs((), order)
    if running and (stopped or state):
        raise UsageError("--running cannot be combined with --stopped, --all or --state", hint="Keep one of them")
    selection = JobSelection(
        jobs.names,
        tags=tuple(tag or ()),
        servers=tuple(server or ()),
        stopped=stopped,
        hidden=hidden,
        states=STARTED if running else read_states(state or ()),
        last=last,
    )
    with connection.console(ASKING) as console:
        workspace = console.find_workspace()
        answer = workspace.list_jobs(selection, logs=rsync)
    others = "" if selection.states or stopped else "; --stopped lists the others"
    empty = ("no jobs", "") if selection.may_have_ended else ("no running jobs", others)
    answer = replace(answer, jobs=tuple(sort_jobs(answer.jobs, order)))
    show_jobs(workspace, answer, json=json, empty=empty, wide=wide)
    leave_unless_ok(answer.exit_code)


def job_tail(  # noqa: PLR0913 - one parameter per option
    *,
    jobs: ChosenJobs,
    lines: Annotated[
        int | None, typer.Option("--lines", min=0, metavar="N", help="Start with the last N lines.")
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Show the output so far and exit.")] = False,
    follow_too: Annotated[bool, typer.Option("--follow", "-f", help="Follow it, which is the default.")] = False,
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay",
            min=0,
            max=LONGEST_DELAY,
            metavar="SECONDS",
            help="For compatibility with labml_remote: 0 means --no-follow; output is always shown at once.",
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, metavar="N", help="Show only this rank.")] = None,
    connection: ConnectionFlags,
) -> None:
    """Follow the output of jobs until they end; Ctrl-C does not stop the jobs."""
    if follow_too and no_follow:
        raise UsageError("--follow and --no-follow cannot be combined", hint="Keep one of them")
    with connection.console() as console:
        options = remote_tool.FollowOptions(lines=lines, wait=not no_follow and delay != 0, rank=rank)
        follow(console.find_workspace(), jobs.selection(stopped=True), options)


def job_wait(
    *,
    jobs: ChosenJobs,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="Give up after this many seconds."),
    ] = None,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Wait for jobs to end, and exit with their status; without a selection, wait for all running jobs."""
    with connection.console("waiting") as console:
        workspace = console.find_workspace()
        try:
            answer, overdue = workspace.wait_jobs(jobs.selection(), timeout=timeout), None
        except StillRunningError as error:
            answer, overdue = error.answer, error
    show_jobs(workspace, answer, json=json, empty=("no running jobs", ""))
    if overdue is not None:
        raise overdue
    leave_unless_ok(answer.program_exit_code)


def job_rsync(
    *,
    server: Servers = None,
    delay: Annotated[
        float,
        typer.Option(
            "--delay",
            min=0,
            max=LONGEST_DELAY,
            metavar="SECONDS",
            show_default=False,
            help="Repeat after this many seconds, until Ctrl-C; 0: fetch once.",
        ),
    ] = 0,
    show_output: ShowOutput = False,
    connection: ConnectionFlags,
) -> None:
    """Fetch the logs and artifacts of all jobs."""
    while True:
        with connection.console(ASKING, show_output=show_output) as console:
            workspace = console.find_workspace()
            answer = workspace.pull_logs(JobSelection(servers=tuple(server or ()), hidden=True))
        inform(f"fetched logs of {counted(len(answer.jobs), 'job')} into {workspace.config.local.jobs}")
        show_problems(answer)
        if not delay:
            leave_unless_ok(answer.exit_code)
            return
        time.sleep(delay)


def job_note(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Job by key or id.", autocompletion=complete("job"))],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note; '' removes it.")],
    *,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Add a note to a job, for job-list; it is stored here, and stays when the job is removed from its server."""
    with connection.console() as console:
        workspace = console.find_workspace()
        job = workspace.note_job(key, text)
    if json:
        print_json(jobs_document([job], {}, workspace.config.local.jobs))
    else:
        inform(f"job {job.key}: {'note saved' if text else 'note removed'}")


def read_states(words: Sequence[str]) -> tuple[JobState, ...]:
    """Read ``--state``.

    Raises:
        UsageError: A word is not a state.
    """
    states = {state.value: state for state in JobState}
    for word in words:
        if word not in states:
            raise UsageError(f"--state {word!r} is not a state", hint=f"The states are {', '.join(states)}")
    return tuple(states[word] for word in words)


def show_jobs(
    workspace: Workspace, answer: JobsAnswer, *, json: bool, empty: tuple[str, str], wide: bool = False
) -> None:
    """Print jobs, or the text and the hint of ``empty`` if there are none, and the problems of servers."""
    if json:
        print_json(jobs_document(answer.jobs, answer.errors, workspace.config.local.jobs))
    elif answer.jobs:
        print_jobs(answer.jobs, errors=answer.errors, wide=wide)
    else:
        _inform_of_none(answer, *empty)
    show_problems(answer)


def _inform_of_none(answer: JobsAnswer, text: str, hint: str) -> None:
    """Print that there are no jobs; name the servers that answered if some did not."""
    answered = [name for name in answer.answered if name not in answer.errors]
    if not answer.errors:
        inform(f"{text}{hint}")
    elif answered:
        inform(f"{text} on {', '.join(answered)}{hint}")
