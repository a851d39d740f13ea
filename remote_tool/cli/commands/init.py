"""The command that creates a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remote_tool.cli.options import Verbose
from remote_tool.cli.output.console import inform
from remote_tool.cli.output.questions import can_ask
from remote_tool.cli.prompts import ask_answers
from remote_tool.config.hosts import load_hostfile, parse_hosts
from remote_tool.paths import current_folder
from remote_tool.workflows.servers.init import (
    InitAnswers,
    parse_server_option,
    refuse_existing,
    servers_of_list,
    write_workspace,
)


def init(
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the project folder on servers.")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="NAME=[USER@]HOST[:PORT]", help="Add a server; may be repeated."),
    ] = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", metavar="HOST,…", help="Add a list of hosts: 10.0.0.1,10.0.0.2.")
    ] = None,
    hostfile: Annotated[
        str | None, typer.Option("--hostfile", metavar="FILE", help="Add the hosts of an MPI or DeepSpeed hostfile.")
    ] = None,
    private_key: Annotated[
        str | None, typer.Option("--private-key", metavar="FILE", help="Private key for login.")
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Write .remote/configs.yaml and exclude.txt; asks for missing values and never overwrites a file."""
    del verbose
    root = current_folder()
    refuse_existing(root)
    listed = (*(parse_hosts(hosts) if hosts is not None else ()), *(load_hostfile(Path(hostfile)) if hostfile else ()))
    servers = (*(parse_server_option(each) for each in server or ()), *servers_of_list(listed))
    given = InitAnswers(name or "", servers, private_key)
    answers = given if given.servers or not can_ask() else ask_answers(given, root)
    for path in write_workspace(root, answers):
        inform(f"wrote {path.relative_to(root)}")
    if any(host.processes for host in listed):
        inform("numbers of processes are not saved; pass them to a launch with --nproc-per-node, --hosts or --hostfile")
    inform("next: remote-tool prepare" if answers.servers else "next: add a server to .remote/configs.yaml")
