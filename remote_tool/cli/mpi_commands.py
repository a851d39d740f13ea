"""The command that starts an MPI program on several servers."""

from __future__ import annotations

from typing import Annotated

import typer

import remote_tool
from remote_tool.cli.console import Console
from remote_tool.cli.following import follow
from remote_tool.cli.job_commands import select_started
from remote_tool.cli.launch_commands import read_processes, start_or_plan
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
from remote_tool.launchers.torch import LaunchRequest


def helper_mpi_launch(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Annotated[str, typer.Option("--cmd", metavar="COMMAND", help="What each rank runs; train.py runs by python.")],
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            "--nproc-per-node",
            "--ppn",
            metavar="N|auto",
            help="Ranks per server; auto: its GPUs, else 1. Default: as the host list says, else 1.",
        ),
    ] = None,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    env: Environment = None,
    devices: Devices = None,
    tag: Tags = None,
    artifact: Artifacts = None,
    no_sync: NoSync = False,
    follow_it: Follow = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and start nothing.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Start mpiexec of MPICH over all servers; they need no SSH to each other."""
    refuse_both(json=json, follow=follow_it)
    targets = Targets.read(server, hosts, hostfile)
    request = LaunchRequest(
        command=cmd,
        servers=targets.servers,
        processes=read_processes(nproc_per_node),
        environment=read_environment(env),
        tags=tuple(tag or ()),
        sync=not no_sync,
        artifacts=tuple(artifact or ()),
        devices=parse_devices(devices),
    )
    console = Console(verbose=verbose, activity="starting")
    workspace, answer = start_or_plan(
        console,
        targets,
        lambda at: at.plan_mpi(request),
        lambda at: at.launch_mpi(request, check=False),
        dry_run=dry_run,
        json=json,
    )
    if follow_it:
        follow(workspace, select_started(answer), remote_tool.FollowOptions(), pass_on=True)
