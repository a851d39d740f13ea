"""The options that several commands share, each declared once."""

from __future__ import annotations

import importlib
import re
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.errors import UsageError
from remote_tool.launchers.command import with_interpreter
from remote_tool.paths import current_folder, find_root, inside_project

if TYPE_CHECKING:
    from collections.abc import Callable


def complete(kind: str) -> Callable[[str], list[str | tuple[str, str]]]:
    """Load the completion of an option when the shell asks: it reads the configuration, which ``--help`` need not."""

    def complete(incomplete: str) -> list[str | tuple[str, str]]:
        module = importlib.import_module("remote_tool.cli.completion")
        return list(getattr(module, f"complete_{kind}")(incomplete))

    return complete


def _add_verbosity_of_program(context: typer.Context, value: int) -> int:
    """Count the ``-v`` before the command's name too."""
    return value + (context.obj or 0)


Servers = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="NAME",
        help="Act on this server only; may be repeated.",
        autocompletion=complete("server"),
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="HOST[:N],…",
        help="Use these hosts instead of configured servers, with N processes each: 10.0.0.1:2,10.0.0.2:2.",
    ),
]
Hostfile = Annotated[
    str | None,
    typer.Option(
        "--hostfile",
        metavar="FILE",
        help="Use the hosts in this MPI or DeepSpeed hostfile instead of configured servers.",
    ),
]
PrivateKey = Annotated[
    str | None,
    typer.Option("--private-key", metavar="FILE", help="With --hosts or --hostfile: log in with this key."),
]
Command = Annotated[
    str | None,
    typer.Option(
        "--cmd",
        metavar="COMMAND",
        help="Command for the shell; a .py file runs with python. Alternatively, pass a program and its arguments "
        "after --.",
    ),
]
Words = Annotated[
    list[str] | None,
    # Hidden from the list of options, where Typer would name its Python type; the usage line shows it.
    typer.Argument(metavar="WORD", hidden=True),
]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="K V", help="Set environment variable K to V; may be repeated."),
]
JobNames = Annotated[
    list[str] | None,
    typer.Option(
        "--job",
        metavar="JOB",
        help="Select a job by key or id, like a positional argument; may be repeated.",
        autocompletion=complete("job"),
    ),
]
JobName = Annotated[
    str,
    typer.Option(
        "--job", metavar="JOB", help="Use the server of this job, by key or id.", autocompletion=complete("job")
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY", hidden=True, autocompletion=complete("job")),
]
TagsToSet = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Tag the jobs; may be repeated.", autocompletion=complete("tag")),
]
TagsToFind = Annotated[
    list[str] | None,
    typer.Option(
        "--tag", metavar="TAG", help="Select jobs with this tag; may be repeated.", autocompletion=complete("tag")
    ),
]
Artifacts = Annotated[
    list[str] | None,
    typer.Option("--artifact", metavar="GLOB", help="Fetch files that match this pattern; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Force = Annotated[bool, typer.Option("--force", help="Redo every step, even if up to date.")]
Relay = Annotated[
    bool,
    typer.Option("--relay", help="Send to one server, which forwards to the others; faster over a slow connection."),
]
ShowOutput = Annotated[bool, typer.Option("--show-output", help="Show the output of each step.")]
Devices = Annotated[
    str | None,
    typer.Option("--devices", metavar="LIST", help="GPUs to expose, e.g. 0,3 or UUIDs; default: as configured."),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="KEY",
        help="Start when this job has succeeded; may be repeated.",
        autocompletion=complete("job"),
    ),
]
AfterAny = Annotated[
    list[str] | None,
    typer.Option(
        "--after-any",
        metavar="KEY",
        help="Start when this job has ended, also if it failed; may be repeated.",
        autocompletion=complete("job"),
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Also replace files that were changed on the server or never sent.")
]
Adopt = Annotated[
    bool,
    typer.Option("--adopt", help="Share the folder on the server although only another workspace has sent it so far."),
]
Workdir = Annotated[
    str | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Run in this folder of the project; default: workdir in configs.yaml, else the current folder.",
        autocompletion=complete("folder"),
    ),
]
Checksum = Annotated[bool, typer.Option("--checksum", help="Compare file contents instead of sizes and times.")]
ChangeNothing = Annotated[bool, typer.Option("--dry-run", help="List what would change, and change nothing.")]
PlanOnly = Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and start nothing.")]
NoSync = Annotated[bool, typer.Option("--no-sync", help="Do not send changed files first.")]
MasterPort = Annotated[
    int | None,
    typer.Option("--master-port", metavar="PORT", help="Rendezvous port on the first server; default: a free port."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Show the output until it ends, and exit with its status.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
AcceptNewKeys = Annotated[
    bool,
    typer.Option("--accept-new-keys", help="Trust new host keys, even when logging in with a password."),
]
Verbose = Annotated[
    int,
    typer.Option(
        *("--verbose", "-v"),
        count=True,
        show_default=False,
        callback=_add_verbosity_of_program,
        help="Show every remote command and its duration; -vv: also the log of the SSH library.",
    ),
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_environment(pairs: list[str] | None) -> dict[str, str]:
    """Read the variables of ``--env``; a value is never shown, as it may be a secret.

    Raises:
        UsageError: A name or a value is invalid.
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


def read_workdir(given: str | None) -> str | None:
    """Return ``--workdir`` relative to the project folder, however it is named from here; None when it is not given.

    Raises:
        UsageError: The folder is outside the project.
    """
    if given is None:
        return None
    here = current_folder()
    root = find_root(here)
    folder = inside_project(root, here / given)
    if folder is None:
        raise UsageError(f"--workdir {given} is not in the project {root}", hint="Choose a folder of the project")
    return folder


def read_command(cmd: str | None, words: list[str] | None) -> str:
    """Return the command as text for a shell: ``--cmd`` as it is, or words with their quotes; python runs a .py file.

    Raises:
        UsageError: Both are given, or neither, or the quotes are wrong.
    """
    if cmd is not None and words:
        whole = " ".join([cmd, *words])
        raise UsageError(
            f"Both --cmd and {words[0]!r:.100} give a command to run",
            hint=f"Keep one of them, or put the whole command in quotes: --cmd {shlex.quote(whole)}",
        )
    if cmd is not None:
        python = with_interpreter(cmd)
        return cmd if python == cmd.strip() else python
    if not words:
        raise UsageError("No command to run", hint="--cmd 'COMMAND | OTHER', or -- PROGRAM ARGUMENT...")
    if len(words[0].split()) > 1 and not (current_folder() / words[0]).exists():
        raise UsageError(
            f"{words[0]!r:.100} is in quotes, so it would be the name of one program",
            hint=f"Remove the quotes, or: --cmd {shlex.quote(' '.join(words))}",
        )
    return with_interpreter(shlex.join(words))
