"""What ``init`` asks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from remote_tool.cli.console import inform
from remote_tool.errors import UsageError
from remote_tool.workflows.init import InitAnswers, ServerAnswer, parse_server_option

if TYPE_CHECKING:
    from pathlib import Path


def ask_answers(given: InitAnswers, root: Path) -> InitAnswers:
    """Ask for the project's name, its servers and the key; what was given as an option is not asked for."""
    name = given.name or typer.prompt("Name of the project's folder on the servers", default=root.name, err=True)
    servers: list[ServerAnswer] = []
    inform("Servers, as NAME=USER@HOST:PORT or just HOST; an empty line ends the list.")
    while text := typer.prompt(f"Server {len(servers) + 1}", default="", show_default=False, err=True).strip():
        try:
            servers.append(parse_server_option(text))
        except UsageError as error:
            inform(f"{error} ({error.hint})")
    key = given.private_key or typer.prompt(
        "Private key (empty: agent, ~/.ssh/config and default keys)", default="", show_default=False, err=True
    )
    return InitAnswers(name, tuple(servers), key or None)
