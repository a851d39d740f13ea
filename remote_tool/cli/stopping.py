"""Ask which jobs to stop, on a terminal or in a pipe of answers such as that of ``yes``."""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING

import typer

from remote_tool.cli.following import show_problems
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok
from remote_tool.cli.output.questions import ask, can_ask
from remote_tool.cli.output.sanitize import escape_controls
from remote_tool.cli.tables.jobs import print_jobs, short_command
from remote_tool.errors import UsageError
from remote_tool.workflows.selection import JobSelection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.cli.groups import Connection
    from remote_tool.jobs.job import Job

ALL = "all"
YES = frozenset({"y", "yes"})
# Seconds: whoever starts a program without input may leave it a pipe that nobody writes to.
ANSWER_SECONDS = 5.0
MOST_SHOWN = 5


def read_keys(words: Sequence[str]) -> tuple[str, ...]:
    """Return the keys in words, which may have commas between them, as the answer to the question may."""
    return tuple(key for word in words for key in (word.replace(",", " ").split() or [word]))


def choose_jobs_to_stop(connection: Connection, *, everything: bool, yes: bool) -> JobSelection:
    """Show the running jobs and ask which to stop; with ``everything`` only whether, and with ``yes`` not even that.

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
    words = [ALL] if everything else read_keys([answers.ask("Jobs to stop (keys, or all)")])
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


def _answers(*, everything: bool, yes: bool) -> _Terminal | _Piped:
    """Return the one who answers.

    Raises:
        UsageError: Nobody does.
    """
    if not yes and can_ask():
        return _Terminal()
    if not yes and (first := _next_line()) is not None:
        return _Piped(first)
    if everything:
        raise UsageError("Nobody confirmed, so none was stopped", hint="remote-tool job-kill --all --yes")
    raise UsageError("No job is selected, so none was stopped", hint="--job KEY, --tag TAG, --server NAME or --all")


class _Terminal:
    """A person."""

    def ask(self, question: str) -> str:
        return ask(question)


class _Piped:
    """The lines of a pipe, the first of which has come."""

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
    # One byte at a time: there is no waiting for bytes that are in a buffer already.
    while select.select([sys.stdin], [], [], ANSWER_SECONDS)[0]:
        byte = os.read(sys.stdin.fileno(), 1)
        if byte in {b"", b"\n"}:
            return line.decode(errors="replace").strip() if line or byte else None
        line += byte
    return None
