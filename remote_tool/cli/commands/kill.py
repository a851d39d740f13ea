"""The command job-kill, which also ends processes that jobs left behind."""

from __future__ import annotations

import os
import select
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.commands.jobs import show_jobs
from remote_tool.cli.following import show_problems
from remote_tool.cli.groups import ConnectionFlags, NamedJobs, Targets
from remote_tool.cli.options import AsJson, TagsToFind, Yes
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, show_failures
from remote_tool.cli.output.json_output import errors_as_json, print_json
from remote_tool.cli.output.questions import ask, can_ask, confirm
from remote_tool.cli.output.sanitize import escape_controls, one_line
from remote_tool.cli.tables.jobs import DAY, HOUR, LONGEST_COMMAND, MINUTE, print_jobs, short_command
from remote_tool.cli.tables.plain import plain_rows
from remote_tool.errors import RemoteToolError, SomeServersFailedError, UsageError
from remote_tool.jobs.job import DEFAULT_GRACE
from remote_tool.protocol.limits import LONGEST_GRACE
from remote_tool.readable import counted, readable_size
from remote_tool.workflows.selection import JobSelection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.jobs.orphans import Orphan, OrphansAnswer

ALL = "all"
YES = frozenset({"y", "yes"})
# Seconds: a program that was started without input may have a pipe that nobody writes to.
ANSWER_SECONDS = 5.0
MOST_SHOWN = 5
# Of a job id: the time of its start.
SHORT_ID = 15
NOT_ENDED = 1
Signal = Annotated[str, typer.Option("--signal", metavar="SIGNAL", help="Signal to send first, by name or number.")]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        min=0,
        max=LONGEST_GRACE,
        metavar="SECONDS",
        help="Time until SIGKILL; default: 45 for torchrun, else 10.",
    ),
]


def job_kill(  # noqa: PLR0913 - one parameter per option
    *,
    jobs: NamedJobs,
    targets: Targets,
    tag: TagsToFind = None,
    signal: Signal = "SIGTERM",
    grace: Grace = None,
    orphans: Annotated[
        bool,
        typer.Option("--orphans", help="End processes that jobs left behind; lists them and asks first."),
    ] = False,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Show and save the stacks of the Python processes first, like job-stacks.")
    ] = False,
    strays: Annotated[bool, typer.Option("--strays", hidden=True, help="Same as --orphans.")] = False,
    all_jobs: Annotated[bool, typer.Option("--all", help="Stop all running jobs of job-list; asks first.")] = False,
    yes: Yes = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Stop jobs and all their processes: SIGTERM, then SIGKILL after a grace period. Asks if no job is selected."""
    name, keys = signal_name(signal), _read_keys(jobs.names)
    if orphans or strays:
        if keys or tag or all_jobs:
            raise UsageError("--orphans cannot be combined with jobs or tags", hint="Choose servers with --server NAME")
        _end_orphans(targets, connection, signal=name, grace=grace, yes=yes, json=json)
        return
    if targets.is_list:
        raise UsageError(
            "--hosts and --hostfile of job-kill need --orphans", hint="--server NAME, the name of the host"
        )
    everything = all_jobs or keys == (ALL,)
    if all_jobs and keys not in {(), (ALL,)}:
        raise UsageError(f"--all and job {keys[0]} cannot be combined", hint="Keep one of them")
    selection = JobSelection(() if everything else keys, tuple(tag or ()), targets.servers)
    if not selection.is_explicit:
        selection = _choose_jobs(connection, everything=everything, yes=yes)
    if stacks:
        _show_stacks(connection, selection)
    with connection.console("stopping") as console:
        workspace = console.find_workspace()
        answer = workspace.stop_jobs(selection, signal=name, grace=grace)
    show_jobs(workspace, answer, json=json, empty=("no jobs", ""))
    leave_unless_ok(answer.exit_code)


def signal_name(text: str) -> str:
    """Read a signal: SIGTERM, term or 15.

    Raises:
        UsageError: The text is not a signal.
    """
    from signal import Signals  # noqa: PLC0415 - the option has the module's name

    upper = text.upper()
    for each in Signals:
        if upper in {each.name, each.name.removeprefix("SIG"), str(each.value)}:
            return each.name
    raise UsageError(f"--signal {text!r} is not a signal", hint="--signal SIGTERM or --signal SIGKILL")


def _show_stacks(connection: ConnectionFlags, selection: JobSelection) -> None:
    """Show the stacks on stderr, and keep them on the servers; an error does not prevent the stop."""
    from remote_tool.cli.tables.stacks import stack_lines  # noqa: PLC0415 - few stops ask for them

    try:
        with connection.console("asking servers") as console:
            answer = console.find_workspace().take_stacks(selection, keep=True)
    except UsageError:
        # There is no such job, or it is not running: the stop itself says so.
        return
    except RemoteToolError as error:
        inform(f"no stacks: {error}")
        return
    for line in (*stack_lines(answer), *(f"{server}: {text}" for server, text in answer.notes)):
        inform(line)
    show_failures(answer.errors)


def _read_keys(words: Sequence[str]) -> tuple[str, ...]:
    """Return the keys in words of the command or an answer, which may have commas between them."""
    return tuple(key for word in words for key in (word.replace(",", " ").split() or [word]))


def _choose_jobs(connection: ConnectionFlags, *, everything: bool, yes: bool) -> JobSelection:
    """Show the running jobs and ask which to stop; with ``everything`` only to confirm, and with ``yes`` not at all.

    Raises:
        UsageError: Nobody answers, or no job is running.
    """
    answers = None if everything and yes else _answers(everything=everything, yes=yes)
    with connection.console("asking servers") as console:
        workspace = console.find_workspace()
        answer = workspace.list_jobs()
    show_problems(answer)
    jobs = answer.jobs
    if not jobs:
        leave_unless_ok(answer.exit_code)
        raise UsageError("No job is running", hint="remote-tool job-list --stopped")
    if answers is None:
        return JobSelection(jobs=tuple(job.id for job in jobs))
    print_jobs(jobs, streams.ERR)
    words = [ALL] if everything else _read_keys([answers.ask("Jobs to stop (keys, or all)")])
    is_all = [word.lower() for word in words] in [[ALL], *([each] for each in YES)]
    names = tuple(job.id for job in jobs) if is_all else tuple(words)
    chosen = workspace.select_local(JobSelection(jobs=names)) if any(names) else []
    if not chosen or answers.ask(f"Stop {_named(chosen)}? [y/N]").lower() not in YES:
        inform("nothing was stopped")
        raise typer.Exit(1)
    return JobSelection(jobs=tuple(job.id for job in chosen))


def _named(jobs: Sequence[Job]) -> str:
    if len(jobs) > MOST_SHOWN:
        return f"these {len(jobs)} jobs"
    return ", ".join(f"{job.key} ({short_command(job)})" for job in jobs)


def _answers(*, everything: bool, yes: bool) -> _Person | _Pipe:
    """Return the source of answers to our questions.

    Raises:
        UsageError: Nobody answers.
    """
    if not yes and can_ask():
        return _Person()
    if not yes and (first := _next_line()) is not None:
        return _Pipe(first)
    if everything:
        raise UsageError("Nobody confirmed, so none was stopped", hint="remote-tool job-kill --all --yes")
    raise UsageError("No job is selected, so none was stopped", hint="--job KEY, --tag TAG, --server NAME or --all")


class _Person:
    """A person at the terminal."""

    def ask(self, question: str) -> str:
        return ask(question)


class _Pipe:
    """The lines of a pipe such as that of ``yes``; the first one has been read."""

    def __init__(self, first: str) -> None:
        self._first: str | None = first

    def ask(self, question: str) -> str:
        """Return the next line, without waiting for long; empty at the end."""
        line, self._first = self._first, None
        line = line if line is not None else _next_line() or ""
        streams.write_text(streams.ERR, f"{escape_controls(question)}: {escape_controls(line)}\n")
        return line


def _next_line() -> str | None:
    """Return the next line of standard input; None at its end, or when none comes soon."""
    line = b""
    # One byte at a time: select does not see bytes that are in a buffer of ours.
    while select.select([sys.stdin], [], [], ANSWER_SECONDS)[0]:
        byte = os.read(sys.stdin.fileno(), 1)
        if byte in {b"", b"\n"}:
            return line.decode(errors="replace").strip() if line or byte else None
        line += byte
    return None


def _end_orphans(
    targets: Targets, connection: ConnectionFlags, *, signal: str, grace: float | None, yes: bool, json: bool
) -> None:
    """Show orphans, and end them if the user confirms; exit with 1 when some are left."""
    with connection.console("looking for orphans") as console:
        workspace = targets.find_workspace(console)
        found = workspace.find_orphans(targets.servers)
    if found.strays and not json:
        _print_orphans(found.strays)
    is_confirmed = bool(found.strays) and (yes or (not json and can_ask() and _confirm(len(found.strays))))
    errors: Mapping[str, RemoteToolError] = {}
    if is_confirmed:
        seconds = DEFAULT_GRACE if grace is None else grace
        with connection.console("ending orphans") as console:
            errors = console.rebind(workspace).end_orphans(found, signal=signal, grace=seconds)
    _show_orphans_outcome(found, errors, ended=is_confirmed, json=json)


def _show_orphans_outcome(
    found: OrphansAnswer, errors: Mapping[str, RemoteToolError], *, ended: bool, json: bool
) -> None:
    all_errors = {**found.errors, **errors}
    if json:
        print_json(_orphans_document(found, all_errors, ended=ended))
    elif ended:
        count = sum(orphan.server not in errors for orphan in found.strays)
        inform(f"ended {counted(count, 'process')}" + ("" if all_errors else "; no orphans left"))
    elif found.strays:
        inform("nothing was ended; --yes ends them")
    elif not all_errors:
        inform("no orphans")
    show_failures(all_errors)
    if all_errors:
        leave_unless_ok(
            SomeServersFailedError(all_errors, [name for name in found.places if name not in errors]).exit_code
        )
    leave_unless_ok(NOT_ENDED if found.strays and not ended else 0)


def _confirm(count: int) -> bool:
    return confirm(f"End {counted(count, 'process')}?")


def _print_orphans(orphans: Sequence[Orphan]) -> None:
    """Print orphans, one row each, as wide as the terminal."""
    text = plain_rows([_orphan_row(orphan) for orphan in orphans])
    if streams.is_terminal(streams.OUT):
        width = get_terminal_size().columns
        text = "".join(line[:width] + "\n" for line in text.splitlines())
    streams.write_text(streams.OUT, text)


def _orphan_row(orphan: Orphan) -> dict[str, str]:
    return {
        "SERVER": one_line(orphan.server),
        "PID": str(orphan.pid),
        "JOB": str(orphan.key or one_line(orphan.job_id)[:SHORT_ID]),
        "STATE": one_line(orphan.state),
        "AGE": _readable_age(orphan.age),
        "MEMORY": readable_size(orphan.memory),
        "GPU": "" if orphan.gpu_memory is None else readable_size(orphan.gpu_memory),
        "COMMAND": one_line(orphan.command)[:LONGEST_COMMAND],
    }


def _readable_age(seconds: float) -> str:
    """Return 1m for 95 seconds, and 2h for 7300."""
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def _orphans_document(
    found: OrphansAnswer, errors: Mapping[str, RemoteToolError], *, ended: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return the document of ``--orphans``; its key keeps the older name."""
    strays = [
        {
            "server": orphan.server,
            "pid": orphan.pid,
            "job": orphan.job_id,
            "key": orphan.key,
            "state": orphan.state,
            "command": orphan.command,
            "age_seconds": round(orphan.age, 1),
            "memory_bytes": orphan.memory,
            "gpu_memory_bytes": orphan.gpu_memory,
            "ended": ended and orphan.server not in errors,
        }
        for orphan in found.strays
    ]
    return {"strays": strays, "errors": errors_as_json(errors)}
