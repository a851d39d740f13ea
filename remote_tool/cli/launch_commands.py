"""The commands that start one program on several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from remote_tool.cli.console import Console, leave_unless_ok, print_data
from remote_tool.cli.following import bring_artifacts, show_until_end
from remote_tool.cli.job_commands import select_started, show_started
from remote_tool.cli.json_output import print_json
from remote_tool.cli.options import (
    Artifacts,
    AsJson,
    Devices,
    Environment,
    Follow,
    Hostfile,
    Hosts,
    NoSync,
    Servers,
    Tags,
    Targets,
    Verbose,
    read_environment,
    refuse_both,
)
from remote_tool.config.devices import parse_devices
from remote_tool.errors import UsageError
from remote_tool.launchers.torch import LaunchRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool import Workspace
    from remote_tool.launchers.fan_out import FanOutPlan
    from remote_tool.launchers.torch import LaunchPlan
    from remote_tool.workflows.selection import JobsAnswer

    Plan = LaunchPlan | FanOutPlan


def helper_torch_launch(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Annotated[str, typer.Option("--cmd", metavar="SCRIPT", help="Script and arguments, as after torchrun.")],
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            "--nproc-per-node",
            metavar="N|auto",
            help="Processes per server; auto: its GPUs, else 1. Default: as the host list says, else 1.",
        ),
    ] = None,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    env: Environment = None,
    devices: Devices = None,
    tag: Tags = None,
    artifact: Artifacts = None,
    master_port: Annotated[
        int | None, typer.Option("--master-port", metavar="PORT", help="On the first server; default: a free one.")
    ] = None,
    use_env: Annotated[
        bool, typer.Option("--use-env", help="Accepted for labml_remote; torchrun always does so.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, metavar="N", help="How often what failed is started anew.")
    ] = 0,
    no_sync: NoSync = False,
    follow_it: Follow = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and start nothing.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Start torchrun on all servers at once, with the right variables on each."""
    refuse_both(json=json, follow=follow_it)
    targets = Targets.read(server, hosts, hostfile)
    request = LaunchRequest(
        command=cmd,
        servers=targets.servers,
        processes=read_processes(nproc_per_node),
        environment=read_environment(env),
        tags=tuple(tag or ()),
        master_port=master_port,
        use_env=use_env,
        max_restarts=max_restarts,
        sync=not no_sync,
        artifacts=tuple(artifact or ()),
        devices=parse_devices(devices),
    )
    console = Console(verbose=verbose, activity="starting")
    workspace, answer = start_or_plan(
        console,
        targets,
        lambda at: at.plan_torch(request),
        lambda at: at.launch(request, check=False),
        dry_run=dry_run,
        json=json,
    )
    if follow_it:
        followed = show_until_end(
            lambda show: workspace.follow_launch(request, answer.jobs, show),
            select_started(answer),
            status=workspace.config.status,
        )
        pulled = bring_artifacts(workspace, followed)
        leave_unless_ok(followed.exit_code or pulled)


def start_or_plan(
    console: Console,
    targets: Targets,
    plan: Callable[[Workspace], Plan],
    start: Callable[[Workspace], JobsAnswer],
    *,
    dry_run: bool,
    json: bool,
) -> tuple[Workspace, JobsAnswer]:
    """Start a launch and say which jobs there are; leave when not all started, and with dry_run after its plan."""
    if dry_run:
        show_plan(console, targets, plan, json=json)
        raise typer.Exit
    with console:
        workspace = console.find_workspace(targets)
        answer = start(workspace)
    show_started(workspace, answer, json=json)
    leave_unless_ok(answer.exit_code)
    return workspace, answer


def show_plan(console: Console, targets: Targets, make: Callable[[Workspace], Plan], *, json: bool) -> None:
    """Say what would be started."""
    with console:
        plan = make(console.find_workspace(targets))
    if json:
        print_json(plan.as_json())
    else:
        print_data(plan.text())


def read_processes(text: str | None) -> int | Literal["auto"] | None:
    """Read ``--nproc-per-node``.

    Raises:
        UsageError: It is neither a number nor auto.
    """
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--nproc-per-node must be a whole number or auto, found {text!r}")
    return int(text)
