"""A pretend server: a home of its own, and the control program called as a client calls it, without SSH between."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from remote_tool.agent.proc import processes
from remote_tool.agent.proc.processes import ProcessSnapshot
from remote_tool.protocol.framing import Frame, FrameReader
from remote_tool.workflows.agent_program import source_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# A folder may be called so, and then every path below has a space and a quote.
PROJECT = "it's a project"
# Of a machine that has much else to do; a test that passes waits for events, not this long.
PATIENCE = 300.0
OLDEST = os.environ.get("REMOTE_TOOL_PYTHON38", "python3.8")


def wait_until(condition: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> Any:
    """Look again and again until the condition holds; returns what it returned."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen in {seconds} s")


def wait_for_text(path: Path) -> str:
    """Wait until a file holds something: who writes it has made it empty before."""
    return str(wait_until(lambda: path.exists() and path.read_text(), f"something in {path.name}"))


def changed_copy(installed: Path, folder: Path, changes: Mapping[str, Mapping[str, str]]) -> Path:
    """Copy the installed package with other values of constants, as ``{"agent/x.py": {"NAME = 1": "NAME = 2"}}``."""
    shutil.copytree(installed, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, texts in changes.items():
        module = folder / "remote_tool" / name
        for old, new in texts.items():
            assert old in module.read_text()
            module.write_text(module.read_text().replace(old, new))
    return folder


class Call:
    """One run of the control program."""

    def __init__(self, server: PretendServer, request: dict[str, Any], environment: dict[str, str]) -> None:
        self.nonce = secrets.token_hex(16)
        self.reader = FrameReader(self.nonce)
        self.process = subprocess.Popen(
            [server.python, "-I", "-S", str(server.entry)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=server.scripts,
        )
        self._frames: list[Frame] = []
        line = json.dumps({"nonce": self.nonce, **server.folders, **request}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(line)
            self.stdin.flush()

    @property
    def stdin(self) -> Any:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> Any:
        assert self.process.stdout is not None
        return self.process.stdout

    def next(self, seconds: float = PATIENCE) -> Frame | None:
        """Return the next frame; None at the end."""
        deadline = time.monotonic() + seconds
        while not self._frames:
            if not select.select([self.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no frame in {seconds} s")
            data = os.read(self.stdout.fileno(), 1024 * 1024)
            if not data:
                return None
            self._frames += self.reader.feed(data)
        return self._frames.pop(0)

    def rest(self) -> list[Frame]:
        """Return all frames to the end."""
        frames = []
        while (frame := self.next()) is not None:
            frames.append(frame)
        return frames

    def close(self) -> int:
        """Go away as a client does; returns the exit status."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self.stdout.close()
            assert self.process.stderr is not None
            self.process.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PretendServer:
    """A home with a project, an environment and the installed control program."""

    def __init__(self, home: Path, installed: Path, python: str = sys.executable) -> None:
        self.home = home
        self.python = python
        self.entry = installed / "run_control.py"
        self.project = home / PROJECT
        self.jobs = self.project / ".jobs"
        self.scripts = self.project / ".remote-scripts"
        self.folder_names = {"jobs_folder": ".jobs", "scripts_folder": ".remote-scripts"}
        # In place of /var/tmp: each server has GPUs of its own.
        self.leases = home.parent / f"{home.name}-leases"
        self.leases.mkdir(parents=True)
        self.scripts.mkdir(parents=True)
        self.ids: list[str] = []
        self.activate()

    @property
    def folders(self) -> dict[str, str]:
        inner = {name: f"{PROJECT}/{folder}" for name, folder in self.folder_names.items()}
        return {"project": PROJECT, **inner}

    def activate(self, **changes: Any) -> None:
        """Write what setup would capture."""
        fields = {"schema": 1, "prefix": sys.prefix, "python": self.python, "version": "3.11.7", "kind": "existing"}
        lists = {"variables": {}, "unset": [], "path": [str(Path(self.python).parent)]}
        (self.scripts / "activation.json").write_text(json.dumps({**fields, **lists, **changes}))

    def open(self, op: str, *, login: dict[str, str] | None = None, **fields: Any) -> Call:
        """Call the control program; login is what the server's login shell exports."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8"}
        environment |= {"REMOTE_TOOL_SUPERVISOR": "1", "REMOTE_TOOL_TEST_LEASES": str(self.leases), **(login or {})}
        return Call(self, {"op": op, **fields}, environment)

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Call for the one answer there is."""
        with self.open(op, **fields) as call:
            frames = call.rest()
            assert len(frames) == 1, frames
            return frames[0].header

    def new_job(self, command: str, /, **fields: Any) -> dict[str, Any]:
        """Return a job as a client asks for it."""
        job_id = f"20261121-053000-{secrets.token_hex(16)}"
        self.ids.append(job_id)
        job = {"id": job_id, "server": "first", "environment": {}, "created_at": time.time()}
        return {**job, "command": command, **fields}

    def start(self, command: str, **fields: Any) -> str:
        """Start a job; returns its id."""
        job = self.new_job(command, **fields)
        answer = self.call("start", jobs=[job])
        assert "error" not in answer["jobs"][0], answer
        # A slow machine answers before the job has started.
        folder = self.jobs / job["id"]
        wait_until(lambda: any((folder / f"{name}.json").exists() for name in ("started", "ended")), "the start")
        return str(job["id"])

    def start_python(self, program: str, **fields: Any) -> str:
        """Start a job that runs a Python program, from a file in the project."""
        path = self.project / f"program_{secrets.token_hex(4)}.py"
        path.write_text(program)
        return self.start(f"exec python -S {path.name}", **fields)

    def status(self, job_id: str) -> dict[str, Any]:
        answer = self.call("status", ids=[job_id])
        assert not answer["bad"], answer
        found: dict[str, Any] = answer["jobs"][0]
        return found

    def stop(self, job_id: str, **fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.call("stop", ids=[job_id], **fields)["jobs"][0]
        return found

    def wait(self, *job_ids: str) -> dict[str, dict[str, Any]]:
        """Wait until jobs have ended; returns their final records."""
        for job_id in job_ids:
            wait_until(partial(self._has_ended, self.jobs / job_id), f"the end of {job_id}")
        return {job_id: self.record(job_id, "ended") for job_id in job_ids}

    @staticmethod
    def _has_ended(folder: Path) -> bool:
        # Its space is given back after the record has its name: nothing changes in the folder then.
        return (folder / "ended.json").exists() and not (folder / "reserve").exists()

    def wait_for_output(self, job_id: str, text: str) -> None:
        wait_until(lambda: text in self.output(job_id), f"{text!r} in the output")

    def record(self, job_id: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.jobs / job_id / f"{name}.json").read_text())
        return found

    def output(self, job_id: str, stream: str = "out") -> str:
        return (self.jobs / job_id / f"job.{stream}").read_text(errors="replace")

    def supervisor(self, job_id: str) -> int:
        return int(self.record(job_id, "started")["supervisor"]["pid"])

    def members(self, job_id: str) -> list[int]:
        """Look for living processes of a job, with or without its supervisor."""
        try:
            supervisor = processes.find_alive(self.record(job_id, "started")["supervisor"])
        except (FileNotFoundError, ValueError):
            supervisor = None
        return [
            process.pid
            for process in ProcessSnapshot().members(
                job_id, str(self.jobs / job_id), supervisor.pid if supervisor else 0
            )
        ]

    def clean(self) -> None:
        """End everything that tests left running; they may, as a crash would."""
        for job_id in self.ids:
            with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError, KeyError):
                supervisor = self.record(job_id, "started")["supervisor"]
                if processes.find_alive(supervisor):
                    os.kill(supervisor["pid"], signal.SIGUSR2)
                    wait_until(partial(_is_gone, supervisor), "the end of a supervisor")
            wait_until(partial(self._is_dead, job_id), "the end of what was left")

    def _is_dead(self, job_id: str) -> bool:
        """Kill what is left of a job; whether it was nothing."""
        members = self.members(job_id)
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not members


def _is_gone(process: dict[str, int]) -> bool:
    return processes.find_alive(process) is None


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a client uploads it."""
    digest, files = source_archive()
    folder = tmp_path_factory.mktemp("scripts") / f"supervisor-{digest}"
    for name, content in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.fixture
def own_home(installed: Path) -> Iterator[PretendServer]:
    """A server for what a killed test would leave unremovable, away from the folders that pytest tidies up."""
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-test-"))
    pretend = PretendServer(folder / "home", installed)
    yield pretend
    pretend.clean()
    shutil.rmtree(folder)


@pytest.fixture
def server(tmp_path: Path, installed: Path) -> Iterator[PretendServer]:
    """A server whose environment is the Python that runs the tests."""
    pretend = PretendServer(tmp_path / "home", installed)
    yield pretend
    pretend.clean()


@pytest.fixture
def oldest(tmp_path: Path, installed: Path) -> Iterator[PretendServer]:
    """A server whose environment has the oldest Python that may be there."""
    try:
        version = subprocess.run(
            [OLDEST, "-c", "import sys; print(sys.version_info[:2], sys.executable, sep='\\n')"],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no python3.8 on PATH, and REMOTE_TOOL_PYTHON38 names none")
    release, executable = version.stdout.splitlines()
    assert release == "(3, 8)"
    pretend = PretendServer(tmp_path / "home", installed, executable)
    yield pretend
    pretend.clean()
