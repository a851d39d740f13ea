"""The options that several commands share, declared once."""

from __future__ import annotations

import importlib
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def _offer(what: str) -> Callable[[str], list[str | tuple[str, str]]]:
    """Load what completes an option when the shell asks: it reads the configuration, which ``--help`` does not need."""

    def complete(incomplete: str) -> list[str | tuple[str, str]]:
        module = importlib.import_module("remote_tool.cli.completion")
        return list(getattr(module, f"complete_{what}")(incomplete))

    return complete


Servers = Annotated[
    list[str] | None,
    typer.Option("--server", metavar="NAME", help="This server; may be repeated.", autocompletion=_offer("server")),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts", metavar="HOST[:N],…", help="These hosts instead, with N processes each: 10.0.0.1:2,10.0.0.2:2."
    ),
]
Hostfile = Annotated[
    str | None,
    typer.Option("--hostfile", metavar="FILE", help="The hosts of this file instead, as MPI and DeepSpeed have it."),
]
Command = Annotated[str, typer.Option("--cmd", metavar="COMMAND", help="What to run.")]
Environment = Annotated[
    list[str] | None, typer.Option("--env", metavar="K V", help="A variable, as two words; may be repeated.")
]
Jobs = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="JOB", help="A key or an id; may be repeated.", autocompletion=_offer("job")),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="A tag; may be repeated.", autocompletion=_offer("tag")),
]
Artifacts = Annotated[
    list[str] | None,
    typer.Option("--artifact", metavar="GLOB", help="Files that it writes, to bring home; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Force = Annotated[bool, typer.Option("--force", help="Do it anew, though it is done.")]
Relay = Annotated[
    bool, typer.Option("--relay", help="Send to one server, which hands it on to the others: for a slow line.")
]
ShowOutput = Annotated[bool, typer.Option("--show-output", help="Show what the steps print.")]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices", metavar="LIST", help="The GPUs that it sees, such as 0,3 or UUIDs; default: as configured."
    ),
]
NoSync = Annotated[bool, typer.Option("--no-sync", help="Do not send changed files first.")]
Follow = Annotated[bool, typer.Option("--follow", help="Show what it prints, and end as it does.")]
Verbose = Annotated[
    int,
    typer.Option(
        *("--verbose", "-v"),
        count=True,
        show_default=False,
        help="Show every remote command and its time; -vv: the SSH library too.",
    ),
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def join_pairs(args: list[str]) -> list[str]:
    """Turn ``--env K V`` into ``--env K=V``, as Typer has no repeated option of two words; the latter is taken too."""
    joined: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        joined.append(word)
        if word == "--":
            return joined + rest
        if word == "--env" and len(rest) > 1 and "=" not in rest[0]:
            joined.append(f"{rest.pop(0)}={rest.pop(0)}")
    return joined


def read_environment(pairs: list[str] | None) -> dict[str, str]:
    """Read the variables of ``--env``; a value is never shown, as it may be a secret.

    Raises:
        UsageError: A name is not one, or a value cannot be one.
    """
    variables = {}
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError("--env takes two words, a name and a value", hint="--env NAME VALUE")
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env {name!r} is not the name of a variable", hint="--env NAME VALUE")
        if "\0" in value:
            raise UsageError(f"--env {name}: a value cannot hold a NUL")
        variables[name] = value
    return variables


@dataclass(frozen=True)
class Targets:
    """Where a command works: on servers of the configuration, or on the hosts of a list."""

    servers: tuple[str, ...] = ()
    hosts: str | None = None
    hostfile: str | None = None

    @classmethod
    def read(cls, servers: list[str] | None, hosts: str | None, hostfile: str | None) -> Targets:
        """Read ``--server``, ``--hosts`` and ``--hostfile``.

        Raises:
            UsageError: More than one of them is given.
        """
        options = {"--server": servers or None, "--hosts": hosts, "--hostfile": hostfile}
        given = [name for name, value in options.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both say which servers are meant", hint="Keep one of them")
        return cls(tuple(servers or ()), hosts, hostfile)

    @property
    def is_list(self) -> bool:
        """Whether hosts of a list are meant."""
        return self.hosts is not None or self.hostfile is not None

    @property
    def words(self) -> str:
        """The options as they are typed, with a space before each; empty without any."""
        given = [*(("--server", name) for name in self.servers), ("--hosts", self.hosts), ("--hostfile", self.hostfile)]
        return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value is not None)


def refuse_both(*, json: bool, follow: bool) -> None:
    """Refuse ``--json`` with ``--follow``: both want stdout.

    Raises:
        UsageError: Both are given.
    """
    if json and follow:
        raise UsageError("--json and --follow both write to stdout", hint="--json, then remote-tool job-tail --job KEY")
