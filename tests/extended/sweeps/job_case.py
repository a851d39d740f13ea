"""One job on a server of its own, started, looked at and stopped by the control program in forks of a zygote."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from remote_tool.agent import states
from remote_tool.protocol import job_folder
from remote_tool.protocol.framing import FrameReader
from remote_tool.protocol.records import parse_record
from tests.processes import is_running

from .injection import Descendant, Fault, Fork, Phase, Zygote, wait_until

CONTROL, SUPERVISOR, COMMAND = 0, 1, 2
PROJECT = "project"
FOLDERS = {"project": PROJECT, "jobs_folder": f"{PROJECT}/.jobs", "scripts_folder": f"{PROJECT}/.remote-scripts"}
_RECORDS = ("spec.json", "started.json", "stop.json", "ended.json")
_FILES = {*_RECORDS, "command", "queued", "job.out", "job.err", "ranks", "reserve"}


class Reality(NamedTuple):
    """What the kernel says of a case: which processes are there, and how often the command has run."""

    ours: tuple[int, ...]
    commands: tuple[int, ...]
    runs: int


class JobCase:
    """A home folder with one job in it."""

    def __init__(self, zygote: Zygote, root: Path, command: str, **fields: object) -> None:
        self._zygote = zygote
        self.home = root / secrets.token_hex(4)
        self.project = self.home / PROJECT
        self.jobs = self.project / ".jobs"
        (self.project / ".remote-scripts").mkdir(parents=True)
        activation = {"schema": 1, "prefix": sys.prefix, "python": sys.executable, "version": "3", "kind": "existing"}
        lists: dict[str, object] = {"variables": {}, "unset": [], "path": []}
        (self.project / ".remote-scripts" / "activation.json").write_text(json.dumps({**activation, **lists}))
        self.id = f"20261121-053000-{secrets.token_hex(16)}"
        self.folder = self.jobs / self.id
        self._nonce = secrets.token_hex(16)
        self._job = {
            "id": self.id,
            "server": "first",
            "command": f"echo $$ >> ran; {command}",
            "environment": {},
            "grace": 0.1,
            "created_at": time.time(),
            **fields,
        }
        self.environment = {"HOME": str(self.home), "REMOTE_TOOL_TEST_LEASES": str(self.home / "leases")}

    def open(
        self, op: str, *, generation: int = CONTROL, fault: Fault | None = None, traced: bool = True, jobs: int = 1
    ) -> Fork:
        """Call the control program, held at the gate; a start may be of more jobs, each with an id of its own."""
        others = [{**self._job, "id": f"{self.id}-{number}"} for number in range(1, jobs)]
        asked = [self._job, *others] if op == "start" else [{"id": self.id}]
        request = {"nonce": self._nonce, "op": op, **FOLDERS, "jobs": asked, "ids": [self.id], "wait": False}
        phase = Phase(
            function="remote_tool.agent.control:main",
            arguments=("",),
            folder=self.home,
            stdin=json.dumps(request).encode() + b"\n",
            environment=self.environment,
            generation=generation,
            fault=fault,
            traced=traced,
            counted_in=self.folder if op == "stop" else None,
        )
        return Fork(self._zygote, phase)

    def call(self, op: str) -> dict[str, Any]:
        """Call the control program and return what it says of the job."""
        with self.open(op, traced=False) as fork:
            fork.go()
            return self.answer(fork.wait(), fork.stderr())

    def answer(self, output: bytes, errors: str = "") -> dict[str, Any]:
        """Read the one answer in what the control program wrote; its whole text when it is no answer about jobs."""
        frames = FrameReader(self._nonce).feed(output)
        assert len(frames) == 1, (output, errors)
        header = frames[0].header
        found: dict[str, Any] = header["jobs"][0] if header.get("jobs") else header
        return found

    def reality(self) -> Reality:
        """Look at the kernel, not at records."""
        mark = f"\0REMOTE_TOOL_JOB_ID={self.id}\0".encode()
        found = list(self._zygote.processes())
        commands = tuple(each.pid for each in found if mark in b"\0" + each.environment)
        ours = tuple(each.pid for each in found if each.pid not in commands and self._is_ours(each))
        return Reality(ours, commands, len(self.lines()))

    def _is_ours(self, process: Descendant) -> bool:
        # A stop of another case opens the folders of our supervisor too, to learn which job it is of.
        stdin = process.opened[0] if process.opened else ""
        is_of_another = Path(stdin).parent.parent == self.home.parent and Path(stdin).parent != self.home
        return not is_of_another and any(path.startswith(f"{self.home}/") for path in process.opened)

    def lines(self) -> list[str]:
        """What the command has written: one line each time that it ran."""
        try:
            return (self.project / "ran").read_text().splitlines()
        except FileNotFoundError:
            return []

    def settled(self, *, stays: bool) -> Reality:
        """Wait until nothing is on its way: the command runs below its supervisor, or nobody looks after it."""

        def scan() -> Reality | None:
            # One look may miss who is forked while it looks.
            reality, again = self.reality(), self.reality()
            at_rest = not reality.ours or (stays and reality.commands and reality.runs)
            return reality if at_rest and reality == again else None

        found: Reality = wait_until(scan, "rest")
        return found

    def standing(self) -> states.JobStatus | None:
        """Judge the job as ``status`` does; None when it does not exist."""
        try:
            folder = job_folder.open_folder(str(self.folder))
        except FileNotFoundError:
            return None
        try:
            return states.judge(folder, self.id, states.scan())
        finally:
            os.close(folder)

    def ended(self) -> bytes | None:
        path = self.folder / "ended.json"
        return path.read_bytes() if path.exists() else None

    def check_records(self) -> None:
        """Every record is whole, and whatever else lies there has a name that nobody reads."""
        if not self.folder.exists():
            return
        for path in self.folder.iterdir():
            if path.name in _RECORDS:
                parse_record(path.name, path.read_bytes(), self.id)
            assert path.name in _FILES or path.name.startswith("."), path

    def check_standing(self, reality: Reality) -> states.JobStatus | None:
        """The judgement agrees with the kernel."""
        standing = self.standing()
        self.check_records()
        if standing is None:
            assert reality == ((), (), 0)
        elif reality.ours:
            assert standing.state == "running"
        elif standing.ended is None:
            assert standing.state == "lost"
            # A command that nobody looks after may end while it is judged.
            left = set(reality.commands) & set(self.reality().commands)
            assert {member.pid for member in standing.members} >= left
            assert "never ran" not in standing.reason or not reality.runs
        else:
            assert standing.is_finished
            assert not reality.commands
        return standing

    def check_retry(self, before: states.JobStatus | None, *, stays: bool) -> None:
        """A start that is asked for again starts nothing twice, and starts what never was there."""
        ended = self.ended()
        again = self.call("start")
        reality = self.settled(stays=stays)
        if before is None:
            assert "error" not in again, again
            assert reality.runs == 1
        assert reality.runs <= 1
        self.check_standing(reality)
        assert ended is None or self.ended() == ended

    def check_stop(self) -> None:
        """What is left can be ended, and a job that had ended stays as it was."""
        ended = self.ended()
        stopped = self.call("stop")
        wait_until(lambda: not self.processes(), f"the end of {self.processes()} after {stopped}")
        standing = self.check_standing(self.reality())
        assert standing is not None
        assert standing.state not in {"running", "starting"}
        assert ended is None or self.ended() == ended
        assert len(self.lines()) <= 1

    def processes(self) -> tuple[int, ...]:
        reality = self.reality()
        return reality.ours + reality.commands

    def kill(self, pids: tuple[int, ...]) -> None:
        """Kill -9, and wait until they are gone."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A process that ends has its locks for a moment after its open files have gone out of sight.
        wait_until(lambda: not any(map(is_running, pids)), "the end of what was killed")

    def clean(self) -> None:
        """End everything that the case left running."""
        while left := self.processes():
            self.kill(left)
