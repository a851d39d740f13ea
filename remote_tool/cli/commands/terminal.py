"""The commands that connect this terminal to a program on a server."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

import remote_tool
from remote_tool.cli.groups import ConnectionFlags, NamedJobs, Targets
from remote_tool.cli.local_screen import LocalScreen
from remote_tool.cli.options import (
    Command,
    Devices,
    Environment,
    Words,
    Workdir,
    read_command,
    read_environment,
    read_workdir,
)
from remote_tool.cli.output.console import inform, leave_unless_ok
from remote_tool.cli.program import PROGRAM
from remote_tool.cli.tables.jobs import how_it_ended
from remote_tool.config.devices import parse_devices
from remote_tool.errors import UsageError
from remote_tool.workflows.selection import JobSelection

KEYS = """
After a new line:
  ~.      disconnect
  ~^Z     suspend remote-tool
  ~~      type ~
  ~?      show this help
"""
KEYS_OF_JOB = KEYS.replace("disconnect", "detach") + "At any time:\n  Ctrl-]  detach\n"


def shell(  # noqa: PLR0913 - one parameter per option
    words: Words = None,
    *,
    cmd: Command = None,
    targets: Targets,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="NAME", help="Keep it running under this name; the same command attaches to it again."
        ),
    ] = None,
    env: Environment = None,
    devices: Devices = None,
    workdir: Workdir = None,
    connection: ConnectionFlags,
) -> None:
    """Open a shell in the project's folder and environment on a server, or run one program in a terminal there."""
    if keep is not None and not keep.strip():
        raise UsageError("--keep needs a name", hint=f"{PROGRAM} shell --keep work")
    request = remote_tool.ShellRequest(
        read_command(cmd, words) if cmd is not None or words else "",
        targets.servers,
        read_environment(env),
        parse_devices(devices),
        read_workdir(workdir),
        keep or "",
    )
    screen = LocalScreen(bracket=keep is not None, help_text=KEYS if keep is None else KEYS_OF_JOB)
    with screen.restored(), connection.console() as console:
        console.screen = screen
        ended = targets.find_workspace(console).shell(request, screen)
    if ended.job is not None and ended.ended_unseen:
        _inform_of_unseen_end(ended.job)
    if ended.end.exit_code is None:
        again = f"{PROGRAM} shell --server {ended.server} --keep {shlex.quote(keep or '')}"
        text = "disconnected; the program has been hung up" if keep is None else f"detached; attach again: {again}"
        inform(screen.line_break + text)
    leave_unless_ok(ended.end.exit_code or 0)


def job_attach(*, named: NamedJobs, connection: ConnectionFlags) -> None:
    """Attach this terminal to a job that has one, by default the only one; Ctrl-], or ~. after a new line, detaches."""
    if len(named.names) > 1:
        raise UsageError("job-attach takes one job", hint=f"{PROGRAM} job-attach KEY; keys are in {PROGRAM} job-list")
    screen = LocalScreen(bracket=True, help_text=KEYS_OF_JOB)
    with screen.restored(), connection.console() as console:
        console.screen = screen
        attached = console.find_workspace().attach(JobSelection(jobs=named.names), screen)
    if attached.end.exit_code is None:
        inform(f"{screen.line_break}detached; attach again: {PROGRAM} job-attach {attached.job.key}")
    elif attached.ended_unseen:
        _inform_of_unseen_end(attached.job)
    else:
        inform(f"{screen.line_break}job {attached.job.key} on {attached.job.server} has ended, {attached.end.text}")
    leave_unless_ok(attached.end.exit_code or 0)


def _inform_of_unseen_end(job: remote_tool.Job) -> None:
    output = f"{PROGRAM} job-tail {job.key} --no-follow"
    inform(f"job {job.key} ended while the connection was lost ({how_it_ended(job)}); its output: {output}")
