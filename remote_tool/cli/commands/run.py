"""The commands that run a program: now, or as a job."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Annotated

import typer

import remote_tool
from remote_tool.cli.following import follow
from remote_tool.cli.groups import ConnectionFlags, RunFlags, Shown, Targets
from remote_tool.cli.options import (
    AsJson,
    Command,
    Devices,
    Environment,
    Words,
    Workdir,
    read_command,
    read_environment,
    read_workdir,
)
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import leave_unless_ok, show_failures
from remote_tool.cli.output.json_output import print_json, servers_document
from remote_tool.cli.output.log_lines import ExactOutput, LabelledOutput
from remote_tool.cli.starting import choose_where_to_start, select_started, show_started
from remote_tool.config.devices import parse_devices
from remote_tool.errors import SomeServersFailedError
from remote_tool.protocol.limits import COMMAND

STREAMS = {"stdout": streams.OUT, "stderr": streams.ERR}


def run(  # noqa: PLR0913 - one parameter per option
    words: Words = None,
    *,
    cmd: Command = None,
    targets: Targets,
    env: Environment = None,
    devices: Devices = None,
    workdir: Workdir = None,
    internet: Annotated[
        bool,
        typer.Option(
            "--internet", help="Let the command reach hosts of internet_hosts by https, through this machine."
        ),
    ] = False,
    silent: Annotated[bool, typer.Option("--silent", help="Do not show the output.")] = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Run a command in the environment, show its output, and exit with its status."""
    command, variables, gpus = read_command(cmd, words), read_environment(env), parse_devices(devices)
    folder = read_workdir(workdir)
    with connection.console() as console:
        workspace = targets.find_workspace(console)
        output = _output(list(targets.servers) or list(workspace.config.usual_servers), silent=silent, json=json)
        with closing(output):
            results = workspace.run(
                command,
                targets.servers,
                env=variables,
                devices=gpus,
                workdir=folder,
                internet=internet,
                on_output=output.write,
                check=False,
            )
    if isinstance(output, _Collected):
        values = {name: {"exit_code": code, **output.of(name)} for name, code in results.values.items()}
        print_json(servers_document(values, results.errors))
    show_failures(results.errors)
    failed = SomeServersFailedError(results.errors, list(results.values)).exit_code if results.errors else 0
    leave_unless_ok(failed or max(results.values.values(), default=0))


def job_run(  # noqa: PLR0913 - one parameter per option
    words: Words = None,
    *,
    cmd: Command = None,
    start: RunFlags,
    tty: Annotated[bool, typer.Option("--tty", help="Give the job a terminal, for job-attach.")] = False,
    retry_on: Annotated[
        str | None,
        typer.Option("--retry-on", metavar="LIST", help="Retry only after these exit codes and signals: 75,SIGKILL."),
    ] = None,
    shown: Shown,
    connection: ConnectionFlags,
) -> None:
    """Start a job on each server and return; the jobs keep running after this command ends."""
    request = start.request(
        remote_tool.StartRequest,
        command=read_command(cmd, words),
        terminal=COMMAND if tty else "",
        retry_on=None if retry_on is None else tuple(word.strip() for word in retry_on.split(",") if word.strip()),
    )
    console = connection.console("starting")
    workspace = start.find_workspace(console)
    request = replace(request, servers=choose_where_to_start(workspace.config, request))
    with console:
        answer = workspace.start_jobs(request, check=False)
    show_started(workspace, answer, json=shown.json)
    if shown.follow and not all(job.never_began for job in answer.jobs):
        options = remote_tool.FollowOptions(started=not answer.errors)
        follow(workspace, select_started(answer), options, pass_on=True)
    leave_unless_ok(answer.exit_code or int(any(job.never_began for job in answer.jobs)))


def _output(servers: list[str], *, silent: bool, json: bool) -> ExactOutput | LabelledOutput | _Collected | _Silence:
    if json:
        return _Collected()
    if silent:
        return _Silence()
    return LabelledOutput(servers) if len(set(servers)) > 1 else ExactOutput()


class _Collected:
    """The output of every server, for the JSON document."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, int], bytearray] = {}

    def write(self, server: str, stream: int, data: bytes) -> None:
        self._data.setdefault((server, stream), bytearray()).extend(data)

    def close(self) -> None:
        """Nothing is held back."""

    def of(self, server: str) -> dict[str, str]:
        found = {name: self._data.get((server, number), b"") for name, number in STREAMS.items()}
        return {name: data.decode(errors="replace") for name, data in found.items()}


class _Silence:
    def write(self, _server: str, _stream: int, _data: bytes) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing is held back."""
