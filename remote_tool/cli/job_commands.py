"""The commands about jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

import remote_tool
from remote_tool.cli import streams
from remote_tool.cli.console import Console, ask, can_ask, confirm, inform, leave_unless_ok, show_failures
from remote_tool.cli.following import follow
from remote_tool.cli.json_output import jobs_document, print_json, started_document
from remote_tool.cli.options import (
    Artifacts,
    AsJson,
    Command,
    Devices,
    Environment,
    Follow,
    Hostfile,
    Hosts,
    Jobs,
    NoSync,
    Servers,
    Tags,
    Targets,
    Verbose,
    read_environment,
    refuse_both,
)
from remote_tool.cli.strays import StrayRequest, end_strays
from remote_tool.cli.tables import how_it_ended, print_jobs, short_command
from remote_tool.config.devices import parse_devices
from remote_tool.errors import UsageError
from remote_tool.supervisor.records import LONGEST_GRACE
from remote_tool.workflows.selection import JobsAnswer, JobSelection, StillRunningError

if TYPE_CHECKING:
    from remote_tool import Workspace

ASKING = "asking the servers"
# Seconds.
LONGEST_DELAY = 86400


def job_run(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Command,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    env: Environment = None,
    devices: Devices = None,
    tag: Tags = None,
    artifact: Artifacts = None,
    no_sync: NoSync = False,
    follow_it: Follow = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Start a job on each server and return; the jobs go on without this program."""
    refuse_both(json=json, follow=follow_it)
    targets = Targets.read(server, hosts, hostfile)
    request = remote_tool.StartRequest(
        cmd,
        targets.servers,
        read_environment(env),
        tags=tuple(tag or ()),
        sync=not no_sync,
        artifacts=tuple(artifact or ()),
        devices=parse_devices(devices),
    )
    with Console(verbose=verbose, activity="starting") as console:
        workspace = console.find_workspace(targets)
        answer = workspace.start_jobs(request, check=False)
    show_started(workspace, answer, json=json)
    if follow_it and answer.jobs:
        follow_started(workspace, answer)
    leave_unless_ok(answer.exit_code)


def job_list(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    rsync: Annotated[bool, typer.Option("--rsync", help="Bring logs and artifacts home too.")] = False,
    stopped: Annotated[bool, typer.Option("--stopped", help="Also jobs that have ended.")] = False,
    hidden: Annotated[bool, typer.Option("--hidden", help="Also jobs with the tag hidden.")] = False,
    tag: Tags = None,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """List running jobs, as their servers see them now."""
    selection = JobSelection(tags=tuple(tag or ()), servers=tuple(server or ()), stopped=stopped, hidden=hidden)
    with Console(verbose=verbose, activity=ASKING) as console:
        workspace = console.find_workspace()
        answer = workspace.list_jobs(selection, logs=rsync)
    _show(workspace, answer, json=json, empty="no jobs" if stopped else "no running jobs; --stopped lists the others")
    leave_unless_ok(answer.exit_code)


def job_tail(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    job: Jobs = None,
    tag: Tags = None,
    lines: Annotated[
        int | None, typer.Option("--lines", min=0, metavar="N", help="Begin with the last N lines.")
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Show what is there and leave.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, metavar="N", help="Show this rank only.")] = None,
    verbose: Verbose = 0,
) -> None:
    """Follow what a job prints until it ends; Ctrl-C leaves the job alone."""
    selection = JobSelection(tuple(job or ()), tuple(tag or ()), tuple(server or ()), stopped=True)
    with Console(verbose=verbose) as console:
        workspace = console.find_workspace()
        follow(workspace, selection, remote_tool.FollowOptions(lines=lines, wait=not no_follow, rank=rank))


def job_kill(  # noqa: PLR0913 - one parameter per option
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    job: Jobs = None,
    tag: Tags = None,
    signal: Annotated[
        str, typer.Option("--signal", metavar="SIGNAL", help="The first one: a name or a number.")
    ] = "SIGTERM",
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace",
            min=0,
            max=LONGEST_GRACE,
            metavar="SECONDS",
            help="From it to SIGKILL; default: 45 for torchrun, else 10.",
        ),
    ] = None,
    strays: Annotated[
        bool, typer.Option("--strays", help="Processes that jobs have left; shows them and asks, or --yes.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Stop jobs: SIGTERM, a grace, SIGKILL, to every process of them. Asks when nothing is selected."""
    name = signal_name(signal)
    targets = Targets.read(server, hosts, hostfile)
    if strays:
        if job or tag:
            raise UsageError("--strays are of jobs that are over; choose with --server")
        end_strays(StrayRequest(targets, name, grace, yes=yes, json=json), verbose=verbose)
        return
    if targets.is_list:
        raise UsageError("--hosts and --hostfile of job-kill are for --strays", hint="--server NAME, which is the host")
    selection = JobSelection(tuple(job or ()), tuple(tag or ()), tuple(server or ()))
    if not selection.is_explicit:
        selection = _ask_which(verbose=verbose, yes=yes)
    with Console(verbose=verbose, activity="stopping") as console:
        workspace = console.find_workspace()
        answer = workspace.stop_jobs(selection, signal=name, grace=grace)
    _show(workspace, answer, json=json, empty="no jobs")
    leave_unless_ok(answer.exit_code)


def job_wait(
    *,
    server: Servers = None,
    job: Jobs = None,
    tag: Tags = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Give up then.")] = None,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Wait for jobs to end, and end with their exit status; without a selection, for all that run."""
    selection = JobSelection(tuple(job or ()), tuple(tag or ()), tuple(server or ()))
    with Console(verbose=verbose, activity="waiting") as console:
        workspace = console.find_workspace()
        try:
            answer, late = workspace.wait_jobs(selection, timeout=timeout), None
        except StillRunningError as error:
            answer, late = error.answer, error
    _show(workspace, answer, json=json, empty="no running jobs")
    if late is not None:
        raise late
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
            help="Again after this long, until Ctrl-C; 0: once.",
        ),
    ] = 0,
    verbose: Verbose = 0,
) -> None:
    """Bring the logs of all jobs home, and their artifacts."""
    while True:
        with Console(verbose=verbose, activity=ASKING) as console:
            workspace = console.find_workspace()
            answer = workspace.pull_logs(JobSelection(servers=tuple(server or ()), hidden=True))
        inform(f"logs of {len(answer.jobs)} jobs are in {workspace.config.local.jobs}")
        _show_problems(answer)
        if not delay:
            leave_unless_ok(answer.exit_code)
            return
        time.sleep(delay)


def show_started(workspace: Workspace, answer: JobsAnswer, *, json: bool) -> None:
    """Say which jobs were started."""
    if json:
        print_json(started_document(answer, workspace.config.local.jobs))
    for job in () if json else answer.jobs:
        inform(f"job {job.key} on {job.server}: {how_it_ended(job)}")
    _show_problems(answer)


def follow_started(workspace: Workspace, answer: JobsAnswer) -> None:
    """Show what these jobs print, and end as they do."""
    follow(workspace, select_started(answer), remote_tool.FollowOptions(), pass_on=True)


def select_started(answer: JobsAnswer) -> JobSelection:
    """Select the jobs that were started."""
    return JobSelection(jobs=tuple(job.id for job in answer.jobs), stopped=True, hidden=True)


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


def _ask_which(*, verbose: int, yes: bool) -> JobSelection:
    """Show the running jobs and ask for some.

    Raises:
        UsageError: There is nobody to ask, or nothing to choose from.
    """
    if yes or not can_ask():
        raise UsageError("Nothing is selected, so nothing is stopped", hint="--job KEY, --tag TAG or --server NAME")
    with Console(verbose=verbose, activity=ASKING) as console:
        workspace = console.find_workspace()
        answer = workspace.list_jobs()
    _show_problems(answer)
    jobs = answer.jobs
    if not jobs:
        leave_unless_ok(answer.exit_code)
        raise UsageError("No job is running", hint="remote-tool job-list --stopped")
    print_jobs(jobs, streams.ERR)
    words = ask("Which (keys, or all)").replace(",", " ").split()
    wanted = tuple(job.id for job in jobs) if words == ["all"] else tuple(words)
    chosen = workspace.select_local(JobSelection(jobs=wanted)) if wanted else []
    names = ", ".join(f"{job.key} ({short_command(job)})" for job in chosen)
    if not chosen or not confirm(f"Stop {names}?"):
        inform("nothing was stopped")
        raise typer.Exit(1)
    return JobSelection(jobs=tuple(job.id for job in chosen))


def _show(workspace: Workspace, answer: JobsAnswer, *, json: bool, empty: str) -> None:
    if json:
        print_json(jobs_document(answer.jobs, answer.errors, workspace.config.local.jobs))
    elif answer.jobs:
        print_jobs(answer.jobs)
    else:
        inform(empty)
    _show_problems(answer)


def _show_problems(answer: JobsAnswer) -> None:
    for sentence in answer.bad:
        inform(sentence)
    show_failures(answer.errors)
