"""The questions of ``init`` on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from remote_tool.cli.output.console import inform, show_error
from remote_tool.cli.output.questions import ask
from remote_tool.errors import RemoteToolError, UsageError
from remote_tool.workflows.servers.init import InitAnswers, ServerAnswer, check_answers, parse_server_option

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def ask_answers(given: InitAnswers, root: Path) -> InitAnswers:
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
    """Ask until the answer is valid; show what is wrong with it."""
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
