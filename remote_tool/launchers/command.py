"""Parse the ``--cmd`` of a launch or a fan-out: its script, and how a shell runs it."""

from __future__ import annotations

import re
import shlex

from remote_tool.errors import UsageError

# They start the ranks on several machines themselves.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "horovodrun", "srun")
_FIRST_WORD = re.compile(r"""\s*((?:[^\s'"]|'[^']*'|"[^"]*")+)""")


def script_file(command: str) -> str | None:
    """Return the first file in a command; None for a module, or if only a shell could determine it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--cmd {command!r} cannot be read: {error}") from None
    if len(words) > 1 and words[0] in {"python", "python3"}:
        words = words[1:]
    first = words[0] if words else ""
    return first if first.endswith(".py") and not first.startswith(("-", "/", "~", "$")) else None


def with_interpreter(command: str) -> str:
    """Return a shell command for one that may begin with a ``.py`` file, or with ``-m`` and a module."""
    found = _FIRST_WORD.match(command)
    first = re.sub("['\"]", "", found[1]) if found else ""
    return f"python {command.strip()}" if first.endswith(".py") or first == "-m" else command.strip()
