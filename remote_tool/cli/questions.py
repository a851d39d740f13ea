"""What ``init`` asks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from remote_tool.cli.console import ask, inform, show_error
from remote_tool.errors import RemoteToolError
from remote_tool.workflows.init import InitAnswers, ServerAnswer, check_answers, parse_server_option

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


def ask_answers(given: InitAnswers, root: Path) -> InitAnswers:
    """Ask for the project's name, its servers and the key; what was given as an option is not asked for."""
    name = given.name or _ask_until(
        "Name of the project's folder on the servers",
        lambda text: _checked(root, InitAnswers(text, ())).name,
        default=root.name,
    )
    inform("Servers, as NAME=USER@HOST:PORT or just HOST; an empty line ends the list.")
    servers = _ask_servers(name, root)
    key = given.private_key or _ask_until(
        "Private key (empty: agent, ~/.ssh/config and default keys)",
        lambda text: _checked(root, InitAnswers(name, servers, text or None)).private_key,
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
    """Ask until the answer can be read; say what is wrong with it."""
    while True:
        try:
            return read(ask(question, default))
        except RemoteToolError as error:
            show_error(error)


def _checked(root: Path, answers: InitAnswers) -> InitAnswers:
    check_answers(root, answers)
    return answers
