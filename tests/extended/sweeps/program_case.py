"""The whole program in a project of its own, with a real server."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from remote_tool.agent import states
from remote_tool.jobs.job import JobSpec, JobState, new_job_id
from remote_tool.jobs.logs import LogFolder
from remote_tool.jobs.registry import Registry
from remote_tool.protocol import job_folder
from remote_tool.workflows.selection import JobSelection
from remote_tool.workspace import Workspace
from tests.project import make_project
from tests.sshd import TestServer

from .injection import Fault, Fork, Phase, Zygote, wait_until
from .zygote import FIRST_THREAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.jobs.job import Job

PREPARED = "project"
EVERYTHING = JobSelection(stopped=True, hidden=True)


class Servers:
    """Servers that are prepared; each is lent to one case at a time."""

    def __init__(self, folder: Path, key: Path, count: int) -> None:
        self._servers = [TestServer("first", folder / str(number), key) for number in range(count)]
        self._free: SimpleQueue[TestServer] = SimpleQueue()

    def start(self, project: Path) -> None:
        """Start all, and prepare the first; what that made there is copied to the others."""
        for server in self._servers:
            server.start()
            self._free.put(server)
        made = self._servers[0].home / PREPARED
        Workspace.find(make_project(project, self._servers[:1])).prepare()
        for server in self._servers[1:]:
            shutil.copytree(made, server.home / PREPARED, symlinks=True)

    def stop(self) -> None:
        for server in self._servers:
            server.stop()

    @contextmanager
    def one(self) -> Iterator[TestServer]:
        """Lend one."""
        server = self._free.get()
        try:
            yield server
        finally:
            self._free.put(server)


def _is_at_rest(job: states.JobStatus) -> bool:
    """Return whether a job neither starts nor will end by itself."""
    return job.state != "starting" and (job.state != "running" or "exec sleep" in job.spec["command"])


class ProgramCase:
    """A project on this side and on a server, where one job runs already."""

    def __init__(self, program: Zygote, control: Zygote, root: Path, server: TestServer) -> None:
        name = f"case-{secrets.token_hex(4)}"
        self._program, self._control = program, control
        self.server = server
        self.folder = make_project(root / name, [server], name=name)
        self.remote = server.home / name
        shutil.copytree(server.home / PREPARED, self.remote, symlinks=True)
        self.registry = Registry(self.folder / ".remote" / "jobs")

    def run(self, *arguments: str, fault: Fault | None = None, traced: bool = True) -> Fork:
        """Run the program; the thread that talks and records is traced."""
        phase = Phase(
            "tests.extended.sweeps.program_phase:run",
            self.folder,
            arguments=arguments,
            environment={name: os.environ[name] for name in ("HOME", "XDG_RUNTIME_DIR")},
            generation=FIRST_THREAD if traced else 0,
            fault=fault,
            traced=traced,
        )
        return Fork(self._program, phase)

    def start_job(self, command: str) -> None:
        """Record and start a job without the program, as one that was there before."""
        spec = JobSpec(new_job_id(), "first", command)
        self.registry.create([spec])
        job = {"id": spec.id, "server": "first", "command": command, "created_at": time.time()}
        assert b'"already":false' in self._ask("start", jobs=[job])

    def _ask(self, op: str, **fields: object) -> bytes:
        folders = {"project": "", "jobs_folder": "/.jobs", "scripts_folder": "/.remote-scripts"}
        named = {key: f"{self.remote.name}{path}" for key, path in folders.items()}
        phase = Phase(
            "remote_tool.agent.control:main",
            self.folder,
            arguments=("",),
            stdin=json.dumps({"nonce": secrets.token_hex(16), "op": op, **named, **fields}).encode() + b"\n",
            environment={"HOME": str(self.server.home)},
            traced=False,
        )
        with Fork(self._control, phase) as fork:
            fork.go()
            return fork.wait()

    def jobs(self) -> list[Job]:
        """The registry opens, every record in it is whole, and no two have one key."""
        jobs, bad = self.registry.load()
        assert not bad
        assert len({job.key for job in jobs}) == len(jobs)
        return jobs

    def standings(self) -> dict[str, states.JobStatus]:
        """How the jobs on the server stand, by the kernel and the records there."""
        folder = job_folder.open_jobs_folder(str(self.remote / ".jobs"))
        if folder is None:
            return {}
        try:
            return {name: _judge(folder, name) for name in self._names()}
        finally:
            os.close(folder)

    def _names(self) -> list[str]:
        return [path.name for path in (self.remote / ".jobs").iterdir() if not path.name.startswith(".")]

    def at_rest(self) -> dict[str, states.JobStatus]:
        """Wait until no start is on its way; what is not in the answer is not there."""

        def is_at_rest() -> bool:
            if self.server.session_pids() or self.controls():
                return False
            return all(map(_is_at_rest, self.standings().values()))

        wait_until(is_at_rest, "rest on the server")
        return self.standings()

    def controls(self) -> list[int]:
        """Processes on the server that answer a program, or carry its words; they end when it is gone."""
        home = f"HOME={self.server.home}\0".encode()
        return [pid for pid in _processes_with(home) if _stdin(pid).startswith(("pipe:", "socket:"))]

    def check_list(self) -> None:
        """After one look at the server every job of it is here, stands as it stands there, and its logs are whole."""
        there = self.at_rest()
        known = {job.id for job in self.jobs()}
        for job_id in known:
            self._check_logs(job_id, complete=False)
        answer = Workspace.find(self.folder).list_jobs(EVERYTHING, logs=True)
        assert not answer.errors, (answer.errors, answer.jobs)
        assert not answer.bad
        here = {job.id: job for job in answer.jobs}
        assert set(here) == known | set(there)
        for job_id, job in here.items():
            # Its start has not come there; it is told so a minute after it was recorded.
            assert job.state is JobState(there[job_id].state) if job_id in there else JobState.STARTING
            self._check_logs(job_id, complete=True)
        assert {job.id: job for job in self.jobs()} == here

    def _check_logs(self, job_id: str, *, complete: bool) -> None:
        """What is here of a log is a beginning of what is there, or all of it."""
        for stream in ("out", "err"):
            path = self.remote / ".jobs" / job_id / f"job.{stream}"
            there = path.read_bytes() if path.exists() else b""
            here = b"".join(LogFolder(self.registry.folder / job_id).read(stream, 0))
            assert here == there if complete else there.startswith(here)

    def check_stop(self) -> None:
        """All that runs there can be stopped."""
        if self.standings():
            self._ask("stop", ids=list(self.standings()))
        assert all(each.is_finished and not each.members for each in self.at_rest().values())

    def lines(self) -> list[str]:
        """What commands have written: one line each time that one ran."""
        path = self.remote / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def clean(self) -> None:
        """End what still runs."""
        for standing in self.standings().values():
            if standing.supervisor is not None:
                with suppress(ProcessLookupError):
                    os.kill(standing.supervisor.pid, signal.SIGKILL)
            for process in standing.members:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def _judge(jobs: int, name: str) -> states.JobStatus:
    folder = job_folder.open_folder(name, jobs)
    try:
        return states.judge(folder, name, states.scan())
    finally:
        os.close(folder)


def _processes_with(variable: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and variable in (entry / "environ").read_bytes():
                yield int(entry.name)


def _stdin(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/0").readlink())
    except OSError:
        return ""
