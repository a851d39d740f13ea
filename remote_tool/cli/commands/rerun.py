"""The commands that start jobs again, and compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import remote_tool
from remote_tool.cli.following import follow, follow_started, show_problems
from remote_tool.cli.groups import Connection, NamedJobs, Shown
from remote_tool.cli.options import AsJson, Environment, complete, read_environment
from remote_tool.cli.output.console import inform, leave_unless_ok
from remote_tool.cli.output.json_output import diff_document, print_json
from remote_tool.cli.starting import select_started, show_started
from remote_tool.cli.tables.job_diff import print_differences
from remote_tool.errors import UsageError
from remote_tool.launchers.command import with_interpreter

if TYPE_CHECKING:
    from remote_tool.workflows.jobs.compare import JobDiff

NewServers = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="NAME",
        help="Start on this server instead; may be repeated.",
        autocompletion=complete("server"),
    ),
]
JobKey = Annotated[str, typer.Argument(metavar="KEY", help="Job by key or id.", autocompletion=complete("job"))]


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
    connection: Connection,
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
    if shown.follow and answer.jobs:
        if len(requests) == 1:
            follow_started(workspace, requests[0], answer)
        else:
            options = remote_tool.FollowOptions(started=not answer.errors)
            follow(workspace, select_started(answer), options, pass_on=True)
    leave_unless_ok(answer.exit_code)


def job_requeue(*, jobs: NamedJobs, env: Environment = None, json: AsJson = False, connection: Connection) -> None:
    """Put jobs back into the queue that left it before they began, because of a reboot or a stop.

    Variables have their values from --env, from the environment of this command, or from configs.yaml.
    """
    variables = read_environment(env)
    with connection.console("starting") as console:
        workspace = console.find_workspace()
        answer = workspace.start_requests(workspace.plan_requeue(*jobs.names, env=variables), check=False)
    show_started(workspace, answer, json=json)
    leave_unless_ok(answer.exit_code)


def _may_differ(diff: JobDiff) -> bool:
    """Return whether the records of two jobs show that their code may differ."""
    one, other = diff.jobs
    return (one.copy, one.git_commit) != (other.copy, other.git_commit) or bool(one.git_dirty or other.git_dirty)


def job_diff(key: JobKey, other: JobKey, *, json: AsJson = False, connection: Connection) -> None:
    """Compare two jobs: how they were started, how they ended, and the last values in their output."""
    with connection.console("asking servers") as console:
        workspace = console.find_workspace()
        answer = workspace.diff(key, other, check=False)
    if json:
        print_json(diff_document(answer, workspace.config.local.jobs))
    else:
        print_differences(answer)
        if not answer.differences and not answer.code.text:
            inform("no differences")
        for note in answer.code.notes if answer.code.source or _may_differ(answer) else ():
            inform(f"code: {note}")
    show_problems(answer)
    leave_unless_ok(answer.exit_code)
