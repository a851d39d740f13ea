"""The command init."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from remote_tool.cli.options import Verbose
from remote_tool.cli.output.console import inform, show_error
from remote_tool.cli.output.questions import ask, can_ask
from remote_tool.config.hosts import load_hostfile, parse_hosts
from remote_tool.errors import RemoteToolError, UsageError
from remote_tool.paths import current_folder
from remote_tool.workflows.servers.init import (
    InitAnswers,
    ServerAnswer,
    ThisMachine,
    check_answers,
    parse_server_option,
    refuse_existing,
    servers_of_list,
    write_workspace,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def init(  # noqa: PLR0913 - one parameter per option
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
    localhost: Annotated[bool, typer.Option("--localhost", help="Add this machine: jobs run in this folder.")] = False,
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
    given = InitAnswers(name or "", servers, private_key, ThisMachine.now() if localhost else None)
    is_complete = bool(given.servers or given.this_machine)
    answers = given if is_complete or not can_ask() else _ask_answers(given, root)
    for path in write_workspace(root, answers):
        inform(f"wrote {path.relative_to(root)}")
    if any(host.processes for host in listed):
        inform("numbers of processes are not saved; pass them to a launch with --nproc-per-node, --hosts or --hostfile")
    has_servers = answers.servers or answers.this_machine
    inform("next: remote-tool prepare" if has_servers else "next: add a server to .remote/configs.yaml")


def _ask_answers(given: InitAnswers, root: Path) -> InitAnswers:
    """Ask for the project's name, its servers and the key, unless an option gave them."""
    name = given.name or _ask_until(
        "Name of the project folder on servers",
        lambda text: _checked(root, InitAnswers(text, ())).name,
        default=root.name,
    )
    inform("Servers, as NAME=USER@HOST:PORT or just HOST; finish with an empty line.")
    servers = _ask_servers(name, root)
    key = given.private_key or _ask_until(
        "Private key (empty: SSH agent, ~/.ssh/config and default keys)",
        lambda text: _with_key(root, InitAnswers(name, servers, text or None)).private_key,
    )
    return InitAnswers(name, servers, key)


def _ask_servers(name: str, root: Path) -> tuple[ServerAnswer, ...]:
    servers: tuple[ServerAnswer, ...] = ()

    def read(text: str) -> tuple[ServerAnswer, ...]:
        return _checked(root, InitAnswers(name, (*servers, parse_server_option(text)))).servers if text else servers

    while (more := _ask_until(f"Server {len(servers) + 1}", read)) != servers:
        servers = more
    return servers


def _ask_until(question: str, read: Callable[[str], T], *, default: str = "") -> T:
    """Ask until the answer is valid; show the error of each one that is not."""
    while True:
        try:
            return read(ask(question, default))
        except RemoteToolError as error:
            show_error(error)


def _checked(root: Path, answers: InitAnswers) -> InitAnswers:
    check_answers(root, answers)
    return answers


def _with_key(root: Path, answers: InitAnswers) -> InitAnswers:
    _checked(root, answers)
    if answers.private_key:
        path = root / Path(answers.private_key).expanduser()
        if not path.is_file():
            raise UsageError(
                f"No such file: {path}", hint="ls ~/.ssh; or leave it empty, and create a key with remote-tool keys"
            )
    return answers
