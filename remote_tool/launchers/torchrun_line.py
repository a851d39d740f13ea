"""Parse the ``--cmd`` of a launch as people paste it: with ``python``, with ``torchrun``, with its options."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.errors import UsageError
from remote_tool.launchers.command import MPI_LAUNCHERS
from remote_tool.launchers.plan import CommandLine

if TYPE_CHECKING:
    from collections.abc import Iterator

# A shell word with its quotes.
_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL)
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
_MODULE = re.compile(r"(?:-u )?-m (\w+)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# A folder that only a shell could determine is left out.
_CHANGES_FOLDER = re.compile(
    r"""\s*cd\s+(?:--\s+)?((?:[^\s'"\\&;|$`*?~<>()]|'[^']*'|"[^"$`\\]*")+)\s*(?:&&|;)\s*(?=\S)"""
)
_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
# torchrun starts every worker with it anyway.
_UNBUFFERED = "-u"

# Options of torchrun 2.13, by how they are handled.
_OURS = ("nproc-per-node", "max-restarts", "master-port")
_DROPPED = (
    *("nnodes", "node-rank", "master-addr", "local-addr"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("log-dir", "redirects", "tee", "logs-specs"),
)
_DROPPED_FLAGS = ("standalone", "use-env")
_PASSED = (
    *("monitor-interval", "start-method", "event-log-handler", "role", "local-ranks-filter", "numa-binding"),
    *("duplicate-stdout-filters", "duplicate-stderr-filters", "signals-to-handle", "shutdown-timeout"),
)
_PASSED_FLAGS = ("module", "no-python", "run-path", "virtual-local-rank")
_SHORT = {"r": "redirects", "t": "tee", "m": "module"}
_WITH_VALUE = {*_OURS, *_DROPPED, *_PASSED}
_KNOWN = (*_WITH_VALUE, *_DROPPED_FLAGS, *_PASSED_FLAGS)

# Launchers that start their own processes, and how they are used here.
_OTHER_LAUNCHERS = {
    "accelerate": "start accelerate with helper-launch, with its own --num_machines, --machine_rank and "
    "--main_process_ip",
    "deepspeed": "start deepspeed with helper-launch, with its own --no_ssh, --node_rank and --master_addr",
    "ray": "start a program of Ray with helper-ray-launch",
    **dict.fromkeys(MPI_LAUNCHERS, "start an MPI program with helper-mpi-launch"),
}
# With "run", these start a program in an environment.
_ENVIRONMENTS = {"uv", "conda", "mamba", "micromamba", "pixi", "poetry", "pdm", "pipenv", "hatch"}


class _Word(NamedTuple):
    raw: str
    start: int
    end: int

    @property
    def value(self) -> str:
        return "".join(shlex.split(self.raw))


def read_torchrun_line(command: str) -> CommandLine:
    """Parse a pasted line.

    Raises:
        UsageError: It is not a single shell line, names another launcher or no script, or sets an option that is one
            of ours.
    """
    try:
        shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--cmd {command!r} cannot be read: {error}") from None
    if found := _CHANGES_FOLDER.match(command):
        line = read_torchrun_line(command[found.end() :])
        folder = "".join(shlex.split(found[1]))
        return replace(line, folder=posixpath.join(folder, line.folder) if line.folder else folder)
    words = list(_words(command))
    if not words:
        return CommandLine(command.strip())
    _refuse_other_launchers(words)
    words = words[_length_of_interpreter(words) :]
    kept, notes = [], []
    index = 0
    while index < len(words) and words[index].value.startswith("-"):
        size, note = _read_option(words, index)
        if note is None:
            kept += [word.raw for word in words[index : index + size]]
        elif note:
            notes.append(note)
        index += size
    if index >= len(words):
        raise UsageError(
            f"--cmd {command.strip()!r} does not name a script", hint="--cmd train.py, or --cmd '-m package.train'"
        )
    rest = command[words[index].start :].strip()
    return CommandLine(" ".join([*kept, rest]), tuple(notes))


def _words(command: str) -> Iterator[_Word]:
    for found in _WORD.finditer(command):
        yield _Word(found[0], found.start(), found.end())


def _refuse_other_launchers(words: list[_Word]) -> None:
    first = words[0].value
    if first == "cd":
        raise UsageError(f"--cmd begins with {first}", hint="--workdir DIR sets the script's working folder")
    if _VARIABLE.match(first):
        name, _, value = first.partition("=")
        raise UsageError(f"--cmd begins with the variable {name}", hint=f"--env {name} {shlex.quote(value)}")
    name = first.rpartition("/")[2]
    if _PYTHON.fullmatch(name):
        # python -m accelerate.commands.launch
        found = _MODULE.match(" ".join(word.value for word in words[1:]))
        name = found[1] if found else name
    if name in _OTHER_LAUNCHERS:
        raise UsageError(
            f"--cmd starts {name}, which starts its own processes, as helper-torch-launch does",
            hint=f"Give only the script, e.g. --cmd train.py, or {_OTHER_LAUNCHERS[name]}",
        )
    if name in _ENVIRONMENTS and "run" in [word.value for word in words[1:]]:
        raise UsageError(
            f"--cmd starts {name} run, but torchrun already runs in the environment of the server",
            hint=f"Give only what {name} would run, e.g. --cmd train.py or --cmd 'torchrun train.py'",
        )


def _length_of_interpreter(words: list[_Word]) -> int:
    """Count the words before torchrun's options: ``python -u``, ``torchrun``, ``python -m torch.distributed.run``."""
    values = [word.value for word in words]
    name = values[0].rpartition("/")[2]
    if name == "torchrun":
        return 1
    if not _PYTHON.fullmatch(name):
        return 0
    count = 2 if values[1:2] == [_UNBUFFERED] else 1
    runs_module = values[count : count + 1] == ["-m"] and not _MODULES.isdisjoint(values[count + 1 : count + 2])
    return count + 2 if runs_module else count


def _read_option(words: list[_Word], index: int) -> tuple[int, str | None]:
    """Return an option's number of words, and a note: None if torchrun gets it."""
    written, equals, value = words[index].value.partition("=")
    name = _full_name(written)
    size = 2 if name in _WITH_VALUE and not equals else 1
    if size > 1:
        value = words[index + 1].value if index + 1 < len(words) else ""
    if name in _OURS:
        raise UsageError(
            f"{written} in --cmd is set by helper-torch-launch",
            hint=f"Remove it from --cmd and use helper-torch-launch --{name} {shlex.quote(value)}",
        )
    if name in _DROPPED or name in _DROPPED_FLAGS:
        shown = f"{written} {value}".strip()
        return size, f"{shown} in --cmd is ignored: helper-torch-launch sets it on each server"
    return size, None


def _full_name(written: str) -> str:
    """Return an option's full name; torchrun accepts underscores and prefixes."""
    name = written.lstrip("-").replace("_", "-")
    if not written.startswith("--"):
        return _SHORT.get(name, name)
    if name in _KNOWN:
        return name
    meant = [each for each in _KNOWN if each.startswith(name)]
    return meant[0] if len(meant) == 1 else name
