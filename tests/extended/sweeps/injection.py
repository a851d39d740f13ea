"""Faults at chosen system calls of one process: kill -9 or an error instead of the Nth call, by strace.

Only calls that change something or talk are swept. What a process reads, maps or asks changes nothing that others
see: a kill there is a kill before the next call that does. A sweep first counts the calls in a run that nothing
disturbs, then repeats the run once for each of them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PATIENCE = 300.0
ROOT = Path(__file__).parents[3]
STRACE = shutil.which("strace") or "strace"

MAKING = [
    "open",
    "openat",
    "creat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "symlink",
    "symlinkat",
    "link",
    "linkat",
    "rename",
    "renameat",
    "renameat2",
]
FILLING = ["write", "pwrite64", "writev", "ftruncate", "truncate", "fallocate", "fsync", "fdatasync"]
CHANGING = ["unlink", "unlinkat", "rmdir", "chmod", "fchmod", "fchmodat", "chown", "fchown", "utimensat", "flock"]
TALKING = ["sendto", "sendmsg", "shutdown", "kill", "tkill", "tgkill", "pidfd_send_signal", "close", "dup2", "dup3"]
LIVING = ["clone", "clone3", "fork", "vfork", "execve", "setsid", "prctl", "chdir", "umask", "exit_group"]
SWEPT = (*MAKING, *FILLING, *CHANGING, *TALKING, *LIVING)
# What a disk that is full or broken refuses.
WRITING = (*MAKING, *FILLING)
_CALL = re.compile(r"([a-z0-9_]+)\((.*)")


@dataclass(frozen=True)
class Call:
    """One system call of a process, as strace shows it.

    Attributes:
        number: How many of its name there were until then, itself counted.
        number_beneath: The same, of those that begin at the same open folder.
    """

    name: str
    number: int
    number_beneath: int
    text: str

    def matters(self) -> bool:
        """Whether it changes or says something: opening to read does not, nor closing what nobody waits for."""
        if self.name in {"open", "openat"}:
            return "O_CREAT" in self.text or "O_TRUNC" in self.text
        if self.name == "close":
            return any(word in self.text for word in ("<pipe:", "<socket:", "<TCP:", "/reserve>", "/lock>"))
        return True

    def __str__(self) -> str:
        return f"{self.name} #{self.number} {self.text[:120]}"


@dataclass(frozen=True)
class Fault:
    """What happens instead of a call: ``signal=KILL`` or ``error=ENOSPC``; it lasts when all later ones fail too."""

    call: Call
    effect: str
    lasts: bool = False

    def options(self, folder: Path | None) -> list[str]:
        """For strace; opening in a folder is counted there, when it is given, because looks at processes open too."""
        beneath = folder is not None and self.call.name == "openat"
        number = self.call.number_beneath if beneath else self.call.number
        when = f"{number}{'+' if self.lasts else ''}"
        options = ["-e", f"trace={self.call.name}", "-e", f"inject={self.call.name}:{self.effect}:when={when}"]
        return [*options, "-P", str(folder)] if beneath else options

    def __str__(self) -> str:
        return f"{self.effect} at {self.call}"


def faults(calls: Iterable[Call], effect: str, names: Sequence[str] = SWEPT) -> list[Fault]:
    """Return one fault for each call that matters and has one of these names."""
    return [Fault(call, effect) for call in calls if call.name in names and call.matters()]


class Tracing:
    """strace on one process, from now to that process's end."""

    def __init__(self, pid: int, log: Path, phase: Phase) -> None:
        self._log = log
        self._fault = fault = phase.fault
        options = ["-e", f"trace=?{',?'.join(SWEPT)}"] if fault is None else fault.options(phase.counted_in)
        self._strace = subprocess.Popen(
            [STRACE, "-y", "-s", "80", "-o", str(log), *options, "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._strace.stderr is not None
        said = self._strace.stderr.readline()
        if b"attached" not in said:
            self.end()
            raise RuntimeError(f"strace: {said.decode()}")

    def wait(self, seconds: float = PATIENCE) -> None:
        """Wait for the end of the process."""
        self._strace.wait(seconds)
        assert self._strace.stderr is not None
        self._strace.stderr.close()

    def end(self) -> None:
        """Let go of the process when it is still there."""
        self._strace.terminate()
        self.wait()

    def calls(self) -> list[Call]:
        """Return every call of the process until now."""
        counts: Counter[tuple[str, ...]] = Counter()
        calls = []
        for line in self._log.read_text(errors="replace").splitlines():
            found = _CALL.match(line)
            if found:
                name, text = found.groups()
                kinds = (name,), (name, text.partition(",")[0])
                counts.update(kinds)
                calls.append(Call(name, counts[kinds[0]], counts[kinds[1]], text))
        return calls

    def has_stopped(self) -> bool:
        """Whether SIGSTOP holds the process."""
        return "--- stopped by SIGSTOP ---" in self._log.read_text(errors="replace")

    def hits(self) -> int:
        """How many calls have failed."""
        return self._log.read_text(errors="replace").count("(INJECTED)")

    def was_hit(self) -> bool:
        """Whether the fault came."""
        text = self._log.read_text(errors="replace")
        if self._fault is None:
            return False
        if self._fault.effect.startswith("error="):
            return self.hits() == 1
        return "+++ killed by SIGKILL +++" in text


@dataclass(frozen=True)
class Phase:
    """What a fork does.

    Attributes:
        function: ``module:name``, returns the exit status.
        arguments: Of the function.
        folder: Where it works, and where its standard streams are files.
        stdin: What it reads.
        environment: What it has beside that of the zygote.
        generation: Which descendant is traced: 0 the fork itself, 1 its child and so on, -1 its first thread.
        fault: What happens to that one.
        counted_in: The folder beneath which opened files are counted by themselves.
    """

    function: str
    folder: Path
    arguments: tuple[object, ...] = ()
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    fault: Fault | None = None
    traced: bool = True
    counted_in: Path | None = None


class Fork:
    """One run of a phase."""

    def __init__(self, zygote: Zygote, phase: Phase) -> None:
        self.name = secrets.token_hex(4)
        self.tracing: Tracing | None = None
        self._others: list[socket.socket] = []
        self._phase = phase
        self._files = {kind: phase.folder / f"{kind}-{self.name}" for kind in ("stdin", "stdout", "stderr", "strace")}
        self._files["stdin"].write_bytes(phase.stdin)
        self._gate = socket.socket(socket.AF_UNIX)
        self._gate.bind(f"\0{self.name}")
        self._gate.listen()
        self._gate.settimeout(PATIENCE)
        self.pid = zygote.fork(
            {
                "function": phase.function,
                "arguments": phase.arguments,
                "folder": str(phase.folder),
                "environment": dict(phase.environment),
                "generation": phase.generation,
                "gate": self.name,
                **{kind: str(self._files[kind]) for kind in ("stdin", "stdout", "stderr")},
            }
        )
        self._waiting: socket.socket | None = self._arrive()
        self._life = os.pidfd_open(self.pid)
        if phase.generation:
            self._open_gate()
            self._waiting = self._arrive()

    def _arrive(self) -> socket.socket:
        link, _ = self._gate.accept()
        link.settimeout(PATIENCE)
        self.target = int(link.recv(64).split()[0])
        return link

    def see_another(self) -> int:
        """Wait until another process of the generation stands at the gate; returns its pid. Our close lets it go."""
        link, _ = self._gate.accept()
        self._others.append(link)
        link.settimeout(PATIENCE)
        return int(link.recv(64).split()[0])

    def _open_gate(self) -> None:
        assert self._waiting is not None
        self._waiting.close()
        self._waiting = None

    def go(self) -> None:
        """Trace whom the phase names, and let it through the gate."""
        if self._phase.traced:
            self.tracing = Tracing(self.target, self._files["strace"], self._phase)
        self._open_gate()

    def wait(self, seconds: float = PATIENCE) -> bytes:
        """Wait for the end of the fork itself; returns what it wrote to stdout."""
        if not self.has_ended(seconds):
            raise AssertionError(f"{self._phase.function} did not end in {seconds} s")
        return self._files["stdout"].read_bytes()

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether the fork itself is gone; waits a little for it."""
        return bool(select.select([self._life], [], [], seconds)[0])

    def stderr(self) -> str:
        return self._files["stderr"].read_text(errors="replace")

    def close(self) -> None:
        """Let go of everything; what still runs goes on."""
        for link in (*self._others, self._waiting):
            if link is not None:
                link.close()
        if self.tracing is not None:
            self.tracing.end()
        os.close(self._life)
        self._gate.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Zygote:
    """A prepared process that forks, see :mod:`tests.extended.sweeps.zygote`."""

    def __init__(self, *modules: str, **environment: str) -> None:
        self.token = f"SWEEP_TOKEN={secrets.token_hex(16)}"
        name, _, value = self.token.partition("=")
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py")), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**_plain_environment(), "PYTHONPATH": str(ROOT), name: value, **environment},
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        if self._stdout.readline() != "ready\n":
            raise RuntimeError("the prepared process did not start")

    def fork(self, case: dict[str, Any]) -> int:
        with self._lock:
            self._stdin.write(json.dumps(case) + "\n")
            self._stdin.flush()
            return int(self._stdout.readline())

    def processes(self) -> Iterator[Descendant]:
        """Look at every process that comes from this one, but itself."""
        token = self.token.encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self._process.pid:
                try:
                    environment = (entry / "environ").read_bytes()
                    # One that is just ending has no memory any more, but may hold files and locks.
                    if token in environment or not environment:
                        yield Descendant(int(entry.name), environment, _opened(entry / "fd"))
                except OSError:
                    continue

    def close(self) -> None:
        """End it."""
        self._stdin.close()
        self._process.wait(PATIENCE)
        self._stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plain_environment() -> dict[str, str]:
    """The environment of the tests without what leads to agents and settings of whoever runs them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "REMOTE_TOOL_", "XDG_"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Descendant:
    """A living process of a case: its environment, and the files that it has open."""

    pid: int
    environment: bytes
    opened: tuple[str, ...]


def _opened(folder: Path) -> tuple[str, ...]:
    found = []
    for entry in folder.iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return tuple(found)


def wait_until(condition: Any, what: str, seconds: float = PATIENCE) -> Any:
    """Look again and again until the condition holds; returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen in {seconds} s")
        time.sleep(0.005)
    return found


def can_trace() -> bool:
    """Whether strace is here and may look at processes that it did not start."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with subprocess.Popen(
                [STRACE, "-o", "/dev/null", "-p", str(process.pid)], stderr=subprocess.PIPE
            ) as tracer:
                assert tracer.stderr is not None
                said = tracer.stderr.readline()
                # It goes when there is nothing left to trace.
                process.kill()
        except FileNotFoundError:
            process.kill()
            return False
    return b"attached" in said
