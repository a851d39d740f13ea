"""Canaries: values of variables and passwords are searched for everywhere after a whole journey, and found nowhere."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import pytest

from tests.below import contents_below
from tests.extended.transport.password_server import PasswordServer, password_server
from tests.figures import record_figure
from tests.project import make_project

if TYPE_CHECKING:
    from tests.conftest import MakeServer

# A canary is found in what it is written as, too.
MARKER = b"REMOTE_TOOL_JOB_ID="


class Canary:
    """A secret value, and what it looks like when it is written somewhere."""

    def __init__(self) -> None:
        # A quote and a backslash: what is escaped on its way must be found, too.
        self.core = f"canary{secrets.token_hex(12)}"
        self.value = f"{self.core} '\\\" end"
        self._shapes = self._make_shapes()

    def _make_shapes(self) -> list[bytes]:
        plain = self.core.encode()
        middles = [base64.b64encode(b" " * shift + plain + b"  ")[4:-4] for shift in range(3)]
        return [plain, plain.hex().encode(), quote(self.core).encode(), plain[::-1], *middles]

    def is_in(self, data: bytes) -> bool:
        return any(shape in data for shape in self._shapes)


class Sampler(threading.Thread):
    """Looks at the command lines of all processes about 100 times a second, and at the variables of all but jobs."""

    def __init__(self, canary: Canary) -> None:
        super().__init__(daemon=True)
        self.samples = 0
        # The user's own command lines, and what they export, are theirs.
        self.own: set[int] = {os.getpid()}
        self._canary = canary
        self._seen: set[tuple[int, int, str]] = set()
        self._is_over = threading.Event()

    @property
    def found(self) -> set[str]:
        """Where it was seen; a program of the user's, or a fork of it, may be seen before it is known as such."""
        return {where for pid, parent, where in self._seen if not {pid, parent} & self.own - {os.getpid()}}

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            self.samples += 1
            for entry in os.scandir("/proc"):
                if entry.name.isdigit() and int(entry.name) not in self.own:
                    self._look(int(entry.name), entry.path)

    def _look(self, pid: int, path: str) -> None:
        try:
            words = Path(path, "cmdline").read_bytes()
            parent = int(Path(path, "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            # The larger part, which lives as long as its process: less often.
            variables = Path(path, "environ").read_bytes() if self.samples % 8 == 0 else b""
        except OSError:
            return
        if self._canary.is_in(words):
            self._seen.add((pid, parent, f"command line {words!r}"))
        if MARKER not in variables and self._canary.is_in(variables):
            self._seen.add((pid, parent, f"variables of {words!r}"))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


class Journey:
    """Runs the real program and keeps all that it says."""

    def __init__(self, root: Path, sampler: Sampler) -> None:
        self.root = root
        self.said = b""
        self._sampler = sampler

    def do(self, *words: str, kill_after: float | None = None, until: bytes = b"", **variables: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-m", "remote_tool", *words],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
        )
        self._sampler.own.add(process.pid)
        if kill_after is not None:
            time.sleep(kill_after)
            process.send_signal(signal.SIGKILL)
        if until:
            assert process.stdout is not None
            for line in process.stdout:
                self.said += line
                if until in line:
                    process.send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=300)
        self.said += said
        return process.returncode


def everything_below(*folders: Path) -> list[tuple[Path, bytes]]:
    """Each file and what it holds; jobs may still be at work."""
    return [(path, data) for path, data in contents_below(*folders) if not path.is_symlink()]


@pytest.mark.row(111)
@pytest.mark.slow
def test_a_variable_is_in_no_file_no_log_no_command_line_and_no_message(
    make_server: MakeServer, tmp_path: Path, own_home: Path
) -> None:
    canary = Canary()
    server = make_server("first", LogLevel="DEBUG2")
    root = make_project(tmp_path / "project", [server])
    text = (root / ".remote" / "configs.yaml").read_text()
    down = re.sub(r"port: \d+", "port: 1", text.partition("servers:\n")[2]).replace("first:", "down:")
    (root / ".remote" / "configs.yaml").write_text(f"{text}{down}")
    env = ["--env", "TOKEN", canary.value]
    with Sampler(canary) as sampler:
        journey = Journey(root, sampler)
        assert journey.do("prepare", "--server", "first", "-v") == 0
        present = ["--cmd", 'test "${#TOKEN}" -gt 20', "--server", "first", *env]
        assert journey.do("run", *present, "-v") == 0
        assert journey.do("job-run", *present, "-v", "--follow") == 0
        assert journey.do("job-run", *present, "--json") == 0
        # Cut off in the middle of a start, and while it follows.
        for moment in (0.3, 0.6, 1.5):
            journey.do("job-run", "--cmd", "sleep 2", "--server", "first", *env, "--follow", kill_after=moment)
        assert journey.do("run", "--cmd", "exit 3", "--server", "first", *env, "-v") == 3
        assert journey.do("job-run", "--cmd", "nonsense-command", "--server", "first", *env, "--follow") == 127
        assert journey.do("job-run", "--cmd", "true", "--server", "down", *env, "-v") != 0
        assert journey.do("job-run", "--cmd", "true", "--server", "nowhere", *env, "-v") == 2
        assert journey.do("run", "--cmd", "true", "--env", "TO KEN", canary.value, "-v") != 0
        journey.do("helper-torch-launch", "--cmd", "hello.py", "--server", "first", *env, "--dry-run", "-v")
        journey.do("job-list", "--stopped", "--rsync", "-v")
        journey.do("job-kill", "--server", "first", "--tag", "none", "--yes", "-v")
    assert not sampler.found
    assert sampler.samples > 100
    assert not canary.is_in(journey.said), journey.said.decode(errors="replace")
    files = everything_below(tmp_path, own_home)
    assert len(files) > 50
    assert [path for path, data in files if canary.is_in(data)] == []
    record_figure(
        "places searched for a variable's canary: files, samples of /proc, found", f"{len(files)}, {sampler.samples}, 0"
    )


@pytest.mark.row(62, 111)
@pytest.mark.slow
async def test_a_password_is_in_no_file_no_log_no_command_line_and_no_message(tmp_path: Path, own_home: Path) -> None:
    canary, wrong = Canary(), Canary()
    root = tmp_path / "project"
    async with password_server(PasswordServer(canary.value)) as door:
        make_project(root, [])
        server = f"hostname: 127.0.0.1, port: {door.port}, username: someone, password_env: DOOR_PASSWORD"
        text = f"name: project\nenvironment: venv\nservers:\n  door: {{{server}}}\n"
        (root / ".remote" / "configs.yaml").write_text(text)
        with Sampler(canary) as sampler, Sampler(wrong) as other:
            journey = Journey(root, sampler)

            def travel() -> None:
                # This server does no more than log in; what matters is over when it is asked what is there.
                journey.do("setup", "-v", "--accept-new-keys", until=b"log in to", DOOR_PASSWORD=canary.value)
                other.own |= sampler.own
                journey.do("setup", "-v", kill_after=0.5, DOOR_PASSWORD=canary.value)
                assert journey.do("job-list", "-v", DOOR_PASSWORD=wrong.value) != 0

            await asyncio.to_thread(travel)
        assert canary.value in door.attempts
        assert wrong.value in door.attempts
    for secret in (canary, wrong):
        assert not secret.is_in(journey.said), journey.said.decode(errors="replace")
        assert [path for path, data in everything_below(tmp_path, own_home) if secret.is_in(data)] == []
    assert not sampler.found


@pytest.mark.row(62, 111)
@pytest.mark.slow
async def test_a_new_key_stays_here_and_its_password_goes_nowhere_else(tmp_path: Path, own_home: Path) -> None:
    canary = Canary()
    root, server_home = tmp_path / "project", tmp_path / "server"
    server_home.mkdir()
    settings = PasswordServer(canary.value, methods=("publickey", "password"), home=server_home)
    async with password_server(settings) as door:
        make_project(root, [])
        server = f"hostname: 127.0.0.1, port: {door.port}, username: someone, password_env: DOOR_PASSWORD"
        (root / ".remote" / "configs.yaml").write_text(f"servers:\n  door: {{{server}}}\n")
        with Sampler(canary) as sampler:
            journey = Journey(root, sampler)
            assert (
                await asyncio.to_thread(journey.do, "keys", "-vv", "--accept-new-keys", DOOR_PASSWORD=canary.value) == 0
            )
        assert door.authorized_keys.exists()
    key = own_home / ".ssh" / "id_ed25519"
    private = key.read_bytes().splitlines()[2]
    assert len(private) == 70
    holders = [path for path, data in everything_below(tmp_path, own_home) if private in data]
    assert holders == [key]
    assert private not in journey.said
    assert not canary.is_in(journey.said)
    assert [path for path, data in everything_below(tmp_path, own_home) if canary.is_in(data)] == []
    assert not sampler.found


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """A canary on a command line, in a variable and in a file, in any of its shapes."""
    canary = Canary()
    for number, shape in enumerate(
        (canary.core, canary.core.encode().hex(), base64.b64encode(canary.value.encode()).decode())
    ):
        (tmp_path / str(number)).write_text(f"x{shape}y")
    assert all(canary.is_in(data) for _, data in everything_below(tmp_path))
    with Sampler(canary) as sampler:
        for process in (
            subprocess.Popen(["sh", "-c", "sleep 60; true", canary.value]),
            subprocess.Popen(["sleep", "60"], env={"TOKEN": canary.value}),
        ):
            deadline = time.monotonic() + 300
            before = len(sampler.found)
            while len(sampler.found) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            process.kill()
            process.wait()
    assert any(found.startswith("command line") for found in sampler.found)
    assert any(found.startswith("variables") for found in sampler.found)
