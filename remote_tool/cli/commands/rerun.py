"""The commands that start jobs again: job-rerun and job-requeue."""

from __future__ import annotations

from typing import Annotated

import typer

import remote_tool
from remote_tool.cli.following import follow, follow_started
from remote_tool.cli.groups import ConnectionFlags, NamedJobs, Shown
from remote_tool.cli.options import AsJson, Environment, complete, read_environment
from remote_tool.cli.output.console import leave_unless_ok
from remote_tool.cli.starting import select_started, show_started
from remote_tool.errors import UsageError
from remote_tool.launchers.command import with_interpreter

NewServers = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="NAME",
        help="Start on this server instead; may be repeated.",
        autocompletion=complete("server"),
    ),
]


def job_rerun(  # noqa: PLR0913 - one parameter per option
    *,
    jobs: NamedJobs,
    cmd: Annotated[
        str | None, typer.Option("--cmd", metavar="COMMAND", help="Run this command instead of the recorded one.")
    ] = None,
    env: Environment = None,
    server: NewServers = None,
    current_code: Annotated[
        bool, typer.Option("--current-code", help="Run the current code, even if the server has kept that of the job.")
    ] = False,
    kept_code: Annotated[
        bool, typer.Option("--kept-code", help="Run the code that the server has kept of the job, or start nothing.")
    ] = False,
    shown: Shown,
    connection: ConnectionFlags,
) -> None:
    """Start jobs again as they were started; a node of a launch stands for the whole launch.

    Variables have their values from --env, from the environment of this command, or from configs.yaml.
    """
    variables = read_environment(env)
    if current_code and kept_code:
        raise UsageError("--current-code and --kept-code cannot be combined", hint="Keep one of them")
    with connection.console("starting") as console:
        workspace = console.find_workspace()
        requests = workspace.plan_rerun(
            *jobs.names,
            command=None if cmd is None else with_interpreter(cmd),
            env=variables,
            servers=server or (),
            current_code=current_code,
            kept_code=kept_code,
        )
        answer = workspace.start_requests(requests, check=False)
    show_started(workspace, answer, json=shown.json)
    if shown.follow and not all(job.never_began for job in answer.jobs):
        if len(requests) == 1:
            follow_started(workspace, requests[0], answer)
        else:
            options = remote_tool.FollowOptions(started=not answer.errors)
            follow(workspace, select_started(answer), options, pass_on=True)
    leave_unless_ok(answer.exit_code or int(any(job.never_began for job in answer.jobs)))


def job_requeue(*, jobs: NamedJobs, env: Environment = None, json: AsJson = False, connection: ConnectionFlags) -> None:
    """Put jobs back into the queue that left it before they began, because of a reboot or a stop.

    Variables have their values from --env, from the environment of this command, or from configs.yaml.
    """
    variables = read_environment(env)
    with connection.console("starting") as console:
        workspace = console.find_workspace()
        answer = workspace.start_requests(workspace.plan_requeue(*jobs.names, env=variables), check=False)
    show_started(workspace, answer, json=json)
    leave_unless_ok(answer.exit_code)
