"""The commands about jobs."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from remote_tool.cli.console import Console, confirm, inform, leave_unless_ok, show_failures
from remote_tool.cli.following import follow
from remote_tool.cli.json_output import jobs_document, print_json
from remote_tool.cli.options import (
    AsJson,
    Command,
    Environment,
    Follow,
    Jobs,
    NoSync,
    Servers,
    Tags,
    Verbose,
    read_environment,
)
from remote_tool.cli.tables import print_jobs, short_command
from remote_tool.errors import UsageError
from remote_tool.workflows.follow_jobs import FollowOptions
from remote_tool.workflows.selection import JobsAnswer, JobSelection
from remote_tool.workflows.start_jobs import StartRequest
from remote_tool.workspace import Workspace


def job_run(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Command,
    server: Servers = None,
    env: Environment = None,
    tag: Tags = None,
    no_sync: NoSync = False,
    follow_it: Follow = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Start a job on each server and return; the jobs go on without this program."""
    request = StartRequest(cmd, tuple(server or ()), read_environment(env), tuple(tag or ()), sync=not no_sync)
    with Console(verbose=verbose, quiet=json) as console:
        workspace = Workspace.find(hooks=console.hooks)
        answer = workspace.start_jobs(request, check=False)
    show_started(workspace, answer, json=json)
    if follow_it:
        chosen = JobSelection(jobs=tuple(job.id for job in answer.jobs), stopped=True, hidden=True)
        follow(Workspace.find(hooks=console.hooks), chosen, FollowOptions(), pass_on=True)
    leave_unless_ok(answer.exit_code)


def job_list(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    rsync: Annotated[bool, typer.Option("--rsync", help="Bring logs home too.")] = False,
    stopped: Annotated[bool, typer.Option("--stopped", help="Also jobs that have ended.")] = False,
    hidden: Annotated[bool, typer.Option("--hidden", help="Also jobs with the tag hidden.")] = False,
    tag: Tags = None,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """List running jobs, as their servers see them now."""
    selection = JobSelection(tags=tuple(tag or ()), servers=tuple(server or ()), stopped=stopped, hidden=hidden)
    with Console(verbose=verbose, quiet=True) as console:
        workspace = Workspace.find(hooks=console.hooks)
        answer = workspace.list_jobs(selection, logs=rsync)
    _show(workspace, answer, json=json, empty="no jobs" if stopped else "no running jobs; --stopped lists the others")


def job_tail(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    job: Jobs = None,
    tag: Tags = None,
    lines: Annotated[int | None, typer.Option("--lines", min=0, help="Begin with the last N lines.")] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Show what is there and leave.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Show this rank only.")] = None,
    verbose: Verbose = 0,
) -> None:
    """Follow what a job prints until it ends; Ctrl-C leaves the job alone."""
    selection = JobSelection(tuple(job or ()), tuple(tag or ()), tuple(server or ()), stopped=True)
    with Console(verbose=verbose, quiet=True) as console:
        workspace = Workspace.find(hooks=console.hooks)
        follow(workspace, selection, FollowOptions(lines=lines, wait=not no_follow, rank=rank))


def job_kill(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    job: Jobs = None,
    tag: Tags = None,
    signal: Annotated[str, typer.Option("--signal", help="The first signal; SIGKILL stops at once.")] = "SIGTERM",
    grace: Annotated[
        float | None, typer.Option("--grace", min=0, metavar="SECONDS", help="Until SIGKILL; 45 for torchrun, else 10.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Stop jobs: SIGTERM, a grace, SIGKILL, to every process of them."""
    selection = JobSelection(tuple(job or ()), tuple(tag or ()), tuple(server or ()))
    with Console(verbose=verbose, quiet=True) as console:
        workspace = Workspace.find(hooks=console.hooks)
        chosen = selection if selection.is_explicit else _ask_which(workspace, yes=yes)
        answer = workspace.stop_jobs(chosen, signal=signal_name(signal), grace=grace)
    _show(workspace, answer, json=json, empty="no jobs")


def job_wait(
    *,
    server: Servers = None,
    job: Jobs = None,
    tag: Tags = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Give up then.")] = None,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Wait for jobs to end, and end with their exit status."""
    selection = JobSelection(tuple(job or ()), tuple(tag or ()), tuple(server or ()))
    with Console(verbose=verbose, quiet=True) as console:
        workspace = Workspace.find(hooks=console.hooks)
        answer = workspace.wait_jobs(selection, timeout=timeout)
    _show(workspace, answer, json=json, empty="no running jobs", leave=False)
    leave_unless_ok(answer.program_exit_code)


def job_rsync(
    *,
    server: Servers = None,
    delay: Annotated[
        float, typer.Option("--delay", min=0, metavar="SECONDS", help="Again after this long, until Ctrl-C; 0: once.")
    ] = 0,
    verbose: Verbose = 0,
) -> None:
    """Bring the logs of all jobs home."""
    with Console(verbose=verbose, quiet=True) as console:
        workspace = Workspace.find(hooks=console.hooks)
        answer = workspace.pull_logs(JobSelection(servers=tuple(server or ()), hidden=True))
        while delay:
            show_failures(answer.errors)
            time.sleep(delay)
            answer = workspace.pull_logs(JobSelection(servers=tuple(server or ()), hidden=True))
    inform(f"logs of {len(answer.jobs)} jobs are in {workspace.config.local.jobs}")
    show_failures(answer.errors)
    leave_unless_ok(answer.exit_code)


def show_started(workspace: Workspace, answer: JobsAnswer, *, json: bool) -> None:
    """Say which jobs were started."""
    if json:
        print_json(jobs_document(answer.jobs, answer.errors, workspace.config.local.jobs))
    for job in () if json else answer.jobs:
        inform(f"job {job.key} on {job.server}: {job.state.value}{f' ({job.reason})' if job.reason else ''}")
    show_failures(answer.errors)


def signal_name(text: str) -> str:
    """Read a signal: SIGTERM, term or 15.

    Raises:
        UsageError: There is no such signal.
    """
    from signal import Signals  # noqa: PLC0415 - the option has the module's name

    upper = text.upper()
    for each in Signals:
        if upper in {each.name, each.name.removeprefix("SIG"), str(each.value)}:
            return each.name
    raise UsageError(f"--signal {text!r} is no signal", hint="--signal SIGTERM or --signal SIGKILL")


def _ask_which(workspace: Workspace, *, yes: bool) -> JobSelection:
    """Show the running jobs and ask for one.

    Raises:
        UsageError: There is nobody to ask.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("Nothing is selected, so nothing is stopped", hint="--job KEY, --tag TAG or --server NAME")
    jobs = workspace.list_jobs(JobSelection()).jobs
    if not jobs:
        raise UsageError("No job is running", hint="remote-tool job-list --stopped")
    print_jobs(jobs)
    wanted = typer.prompt("Which (keys, or all)", err=True).replace(",", " ").split()
    chosen = [job for job in jobs if wanted == ["all"] or str(job.key) in wanted]
    names = ", ".join(f"{job.key} ({short_command(job)})" for job in chosen)
    if not chosen or not confirm(f"Stop {names}?"):
        raise UsageError("Nothing was stopped")
    return JobSelection(jobs=tuple(job.id for job in chosen))


def _show(workspace: Workspace, answer: JobsAnswer, *, json: bool, empty: str, leave: bool = True) -> None:
    if json:
        print_json(jobs_document(answer.jobs, answer.errors, workspace.config.local.jobs))
    elif answer.jobs:
        print_jobs(answer.jobs)
    else:
        inform(empty)
    for sentence in answer.bad:
        inform(sentence)
    show_failures(answer.errors)
    if leave:
        leave_unless_ok(answer.exit_code)
