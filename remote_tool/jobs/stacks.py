"""The stacks of Python processes: parse dumps of faulthandler and py-spy, and group processes at the same place."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_THREAD = re.compile(r"(?:Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)')
# Files of installed packages, Python itself, and libraries: not the project's code.
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<frozen |\.so(?:\.|$)")
# The calls that start a script: of Python itself, of torchrun, and of the processes of a DataLoader.
_LAUNCHER = re.compile(
    r"^<frozen runpy>$|/runpy\.py$|/torch/distributed/(?:run|launch)\.py$|/torch/distributed/(?:launcher|elastic)/"
    r"|/multiprocessing/(?:context|forkserver|popen_\w+|process|spawn)\.py$|/bin/(?:torchrun|accelerate|deepspeed)$"
    r"|/(?:accelerate/commands|deepspeed/launcher)/"
)
_MOST_FRAMES = 200
# Names of wrapper functions, which do not show where a process is.
_WRAPPERS = frozenset({"wrapper", "inner", "decorate_context", "_call_impl", "_wrapped_call_impl", "_fn", "<lambda>"})


@dataclass(frozen=True)
class StackFrame:
    """A call in a stack, in which the innermost call comes first."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """The file's name and the line."""
        return f"{PurePosixPath(self.file).name}:{self.line}"


@dataclass(frozen=True)
class ProcessStack:
    """A Python process of a job.

    Attributes:
        job: The job's key.
        server: The server's name.
        pid: On that server.
        rank: Its global rank; None if it has none.
        is_child: Whether a process of the same rank started it, as a worker of a DataLoader.
        command: Its command line.
        threads: The stack of each thread, the main one last; empty if unknown.
        why: Why the stacks are unknown.
    """

    job: int
    server: str
    pid: int
    rank: int | None
    is_child: bool
    command: str
    threads: tuple[tuple[StackFrame, ...], ...]
    why: str

    @property
    def stack(self) -> tuple[StackFrame, ...]:
        """The stack of the main thread; the innermost call comes first."""
        return self.threads[-1] if self.threads else ()

    @property
    def folded(self) -> tuple[tuple[StackFrame, ...], int]:
        """The stack without the outermost calls, which are the launcher's, and the number of these."""
        stack = self.stack
        own = next((n for n in range(len(stack), 0, -1) if not _LAUNCHER.search(stack[n - 1].file)), 0)
        is_launcher = any("/torch/distributed/" in frame.file for frame in stack[own:])
        # A launcher that waits shows calls of the standard library.
        inner = 0 if is_launcher and all(_FOREIGN.search(frame.file) for frame in stack[:own]) else own
        return stack[:inner], len(stack) - inner

    @property
    def where(self) -> str:
        """The call of the project's code, with its place: ``all_reduce (train.py:88)``."""
        stack = self.stack
        if not stack:
            return self.why or "no Python code"
        own = next((number for number, frame in enumerate(stack) if not _FOREIGN.search(frame.file)), 0)
        called = next((frame for frame in reversed(stack[:own]) if frame.function not in _WRAPPERS), stack[own])
        return f"{called.function} ({stack[own].place})"


@dataclass(frozen=True)
class StackGroup:
    """Processes at the same place."""

    where: str
    processes: tuple[ProcessStack, ...]

    @property
    def label(self) -> str:
        """The name: ``ranks 0-6``, ``2 children of rank 7``, ``process 1234 on gpu1``, or ``job 3 on gpu1``."""
        first = self.processes[0]
        if first.rank is None:
            several = f"{len(self.processes)} processes"
            alone = f"process {first.pid}" if first.pid else f"job {first.job}"
            return several if len(self.processes) > 1 else f"{alone} on {first.server}"
        ranks = sorted({each.rank for each in self.processes if each.rank is not None})
        named = name_ranks(ranks)
        count = len(self.processes)
        return f"{count} {'child' if count == 1 else 'children'} of {named}" if first.is_child else named


def read_threads(text: str) -> tuple[tuple[StackFrame, ...], ...]:
    """Return the stacks in a dump of faulthandler or py-spy, the main thread's last."""
    if text.startswith("["):
        return _read_json(text)
    threads: list[list[StackFrame]] = []
    for line in text.splitlines():
        if _THREAD.fullmatch(line):
            threads.append([])
        elif threads and (match := _FRAME.fullmatch(line)) and len(threads[-1]) < _MOST_FRAMES:
            number = int(match["line"]) if match["line"].isdigit() else 0
            threads[-1].append(StackFrame(match["file"], number, match["function"]))
    return tuple(map(tuple, threads))


def _read_json(text: str) -> tuple[tuple[StackFrame, ...], ...]:
    """Read the output of ``py-spy dump --json``; return nothing if it has another form."""
    try:
        threads = sorted(json.loads(text), key=lambda thread: thread["thread_name"] == "MainThread")
        return tuple(
            tuple(
                StackFrame(str(frame["filename"]), int(frame["line"]), str(frame["name"]))
                for frame in thread["frames"][:_MOST_FRAMES]
            )
            for thread in threads
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return ()


def grouped(processes: Iterable[ProcessStack]) -> list[StackGroup]:
    """Group processes at the same place: ranks first, and the smallest group of ranks before the others."""
    groups: dict[tuple[bool, bool, str], list[ProcessStack]] = defaultdict(list)
    for each in processes:
        groups[each.rank is None, each.is_child, each.where].append(each)
    order = sorted(groups.items(), key=lambda item: (item[0][:2], len(item[1]), _first_rank(item[1])))
    return [StackGroup(where, tuple(members)) for (_, _, where), members in order]


def _first_rank(processes: Sequence[ProcessStack]) -> int:
    return min((each.rank for each in processes if each.rank is not None), default=0)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``ranks 0-2, 5`` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in ranks:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"ranks {shown}" if len(ranks) > 1 else f"rank {shown}"
