"""Two servers that the tests of one process share, and a project of its own for each test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.processes import environments, is_running, open_files
from tests.program import remote_tool
from tests.project import compile_agent, make_project, make_workspace_id, workspace_id
from tests.promises.kinds import works
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from tests.conftest import MakeServer

PATIENCE = 300.0
# The first control program for which the condition holds hangs with its request, as on a machine whose disk does, for
# ten minutes at most.
_HOLD = """\
if {condition} && mkdir "{place}/held" 2>/dev/null; then
    until read -t 0; do sleep 0.05; done
    touch "{place}/arrived"
    for ((tick = 0; tick < 12000; tick++)); do [ ! -e "{place}/go" ] || break; sleep 0.05; done
    touch "{place}/gone-on"
fi
"""


class Desk:
    """A project on this machine, and the servers of its configuration.

    Attributes:
        root: The folder of the project.
        servers: By name.
    """

    def __init__(self, root: Path, servers: Mapping[str, TestServer]) -> None:
        self.root = root
        self.servers = servers

    def there(self, server: str = "first") -> Path:
        """Return the folder of the project on a server."""
        return self.servers[server].home / str(self.settings()["name"])

    def settings(self) -> dict[str, Any]:
        """Return what configs.yaml says."""
        values: dict[str, Any] = yaml.safe_load((self.root / ".remote" / "configs.yaml").read_text())
        return values

    def configure(self, **settings: object) -> None:
        """Set keys of configs.yaml; None removes one."""
        values = {key: value for key, value in (self.settings() | settings).items() if value is not None}
        (self.root / ".remote" / "configs.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    def tries(self, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the program."""
        return remote_tool(*words, cwd=self.root, timeout=PATIENCE, environment=environment)

    def does(self, *words: str, environment: dict[str, str] | None = None) -> str:
        """Run the program, which has to succeed, and return its standard output."""
        ran = self.tries(*words, environment=environment)
        assert ran.returncode == 0, f"{words}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def refuses(self, *words: str, status: int | None = None) -> str:
        """Run the program, which has to fail without a traceback, and return what it says on standard error."""
        ran = self.tries(*words)
        assert ran.returncode != 0, f"{words}\n{ran.stdout}\n{ran.stderr}"
        assert status is None or ran.returncode == status, f"{words}: {ran.returncode}\n{ran.stderr}"
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stderr

    def runs_meanwhile(self, *words: str, environment: dict[str, str] | None = None) -> Meanwhile:
        """Start the program; the test ends it."""
        return Meanwhile(
            [sys.executable, "-m", "remote_tool", *words],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def jobs(self, *words: str) -> list[dict[str, Any]]:
        """Return the jobs of job-list, by default all, with their states as the servers know them."""
        # Without more, the list has only jobs that have not ended; with --stopped it has all.
        listed: list[dict[str, Any]] = json.loads(self.does("job-list", "--json", *(words or ["--stopped"])))["jobs"]
        return listed

    def job(self, key: int | str) -> dict[str, Any]:
        """Return one job of job-list by its key."""
        (found,) = [job for job in self.jobs() if str(job["key"]) == str(key)]
        return found

    def waits_for(self, key: int | str, *states: str) -> dict[str, Any]:
        """Wait until a job has one of these states, and return it."""
        found: list[dict[str, Any]] = []

        def has_it() -> bool:
            found[:] = [self.job(key)]
            return found[0]["state"] in states

        until(has_it, f"job {key} is {' or '.join(states)}", last=lambda: found)
        return found[0]

    def end_all(self, server: str) -> None:
        """Kill all processes of the project on a server at the same time, as a power cut does."""
        mark = f"HOME={self.servers[server].home}\0".encode()
        folder = f"{self.there(server)}/"
        stopped: set[int] = set()

        def holders() -> set[int]:
            found = [pid for pid, environment in environments() if mark in environment and is_running(pid)]
            return {pid for pid in found if any(name.startswith(folder) for name in open_files(pid).values())}

        def stop() -> bool:
            found = holders() - stopped
            _send(signal.SIGSTOP, found)
            stopped.update(found)
            return not found

        # First, as none may see the end of another.
        until(stop, "everything stands still")
        _send(signal.SIGKILL, stopped)
        until(lambda: not holders(), "the end of everything")


class Meanwhile(subprocess.Popen[str]):
    """A program that runs meanwhile; a test that fails does not wait for its end."""

    def communicate(self, input: str | None = None, timeout: float | None = PATIENCE) -> tuple[str, str]:  # noqa: A002
        """Read the rest of its output, with a bound."""
        return super().communicate(input, timeout)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for its end, unless the test has failed."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def before_each_request(desk: Desk, does: str, server: str = "first") -> Path:
    """Have a shell of a server do something before it becomes the program that answers, which it knows as $python.

    Return that program; put back in its place, it answers by itself again.
    """
    place = desk.there(server) / ".remote-scripts" / "python"
    program = place.with_name("python.answers")
    if not program.exists():
        place.rename(program)
    place.write_text(f'#!/bin/bash\npython={program}\n{does}\nexec "$python" "$@"\n')
    place.chmod(0o700)
    return program


class HeldRequest:
    """The first request to a server, of this project, for which a shell command succeeds: it hangs there."""

    def __init__(self, desk: Desk, condition: str, server: str = "first") -> None:
        self.place = desk.there(server)
        before_each_request(desk, _HOLD.format(condition=condition, place=self.place), server)

    def wait(self) -> None:
        """Wait until it has arrived."""
        until((self.place / "arrived").exists, "a request is held up", 60)

    def let_go(self) -> None:
        """Let it go on."""
        (self.place / "go").touch()
        until((self.place / "gone-on").exists, "the request goes on", 60)


def until(
    condition: Callable[[], object], what: str, seconds: float = PATIENCE, *, last: Callable[[], object] | None = None
) -> None:
    """Wait for what must come true; fail when it does not, with what was there last."""
    deadline = time.monotonic() + seconds
    while not condition():
        seen = f"; last: {last()}" if last else ""
        assert time.monotonic() < deadline, f"not within {seconds:.0f} seconds: {what}{seen}"
        time.sleep(0.1)


def without(programs: str) -> tuple[str, ...]:
    """Return what the command of a server begins with, so that it has none of these; skip where that does not work."""
    if not works("unshare --mount true"):
        pytest.skip("taking a program from a server needs root")
    hide = f'for each in {programs}; do [ ! -e "$each" ] || mount --bind /dev/null "$each"; done; exec "$@"'
    return ("unshare", "--mount", "sh", "-c", hide, "sh")


@contextmanager
def folder_of_sockets() -> Iterator[dict[str, str]]:
    """A place where logins may be kept, whose path is short."""
    with tempfile.TemporaryDirectory(prefix="rtk") as folder:
        yield {"XDG_RUNTIME_DIR": folder}


@pytest.fixture(scope="session")
def two_machines(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[dict[str, TestServer]]:
    """Two servers that live as long as the test process, ``first`` and ``second``."""
    folder = tmp_path_factory.mktemp("machines")
    with ExitStack() as stack:
        yield {name: stack.enter_context(TestServer(name, folder / name, ssh_key)) for name in ("first", "second")}


@pytest.fixture(scope="session")
def _prepared_on_first(two_machines: dict[str, TestServer], tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return _to_copy(_prepared(tmp_path_factory.mktemp("prepared"), {"first": two_machines["first"]}))


@pytest.fixture(scope="session")
def _prepared_on_both(two_machines: dict[str, TestServer], tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return _to_copy(_prepared(tmp_path_factory.mktemp("prepared"), two_machines))


@pytest.fixture
def desk(_prepared_on_first: Desk, tmp_path: Path) -> Desk:
    """A project with a name of its own that is prepared on ``first``."""
    return _copied(_prepared_on_first, tmp_path)


@pytest.fixture
def desk_of_two(_prepared_on_both: Desk, tmp_path: Path) -> Desk:
    """A project with a name of its own that is prepared on both servers."""
    return _copied(_prepared_on_both, tmp_path)


@pytest.fixture
def desk_alone(make_server: MakeServer, tmp_path: Path) -> Desk:
    """A project that is prepared on a server which no other project uses."""
    return _prepared(tmp_path, {"first": make_server()})


@pytest.fixture
def behind(desk_of_two: Desk, own_home: Path) -> Desk:
    """A project whose first server is reached through its second; both are known."""
    (own_home / ".ssh").mkdir(mode=0o700)
    blocks = [
        f"Host {name}\n  HostName {each.address}\n  User {each.username}\n  Port {each.port}\n"
        f"  IdentityFile {each.key}\n"
        for name, each in desk_of_two.servers.items()
    ]
    (own_home / ".ssh" / "config").write_text("".join([*blocks, "Host first\n  ProxyJump second\n"]))
    desk_of_two.configure(servers={name: {"hostname": name} for name in desk_of_two.servers}, keep_connections=0)
    desk_of_two.does("run", "--cmd", "true")
    return desk_of_two


@pytest.fixture
def desk_of_all(_desk_of_a_module: Desk) -> Desk:
    """A project that the tests of a module share, prepared on both servers; other tests have left jobs and files."""
    # A home belongs to a single test, so the first one prepares.
    if not _desk_of_a_module.there("second").exists():
        _desk_of_a_module.does("prepare")
    return _desk_of_a_module


@pytest.fixture(scope="module")
def _desk_of_a_module(two_machines: dict[str, TestServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    found = _made(tmp_path_factory.mktemp("desk"), two_machines)
    yield found
    for server in two_machines:
        found.end_all(server)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, two_machines: dict[str, TestServer]) -> Path:
    """A project that the tests of one process share, prepared on both servers."""
    root = make_project(tmp_path_factory.mktemp("projects") / "project", two_machines.values())
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    return root


@pytest.fixture
def away(project: Path, tmp_path: Path) -> Path:
    """A checkout of it with the first server, which works, and one that cannot be reached."""
    values = yaml.safe_load((project / ".remote" / "configs.yaml").read_text())
    del values["servers"]["second"]
    values["servers"]["away"] = {"hostname": "127.0.0.1", "port": 1}
    root = tmp_path / "project"
    make_workspace_id(root)
    (root / ".remote" / "configs.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return root


def _new_name() -> str:
    return f"p-{os.urandom(4).hex()}"


def _made(folder: Path, servers: Mapping[str, TestServer]) -> Desk:
    name = _new_name()
    return Desk(make_project(folder / name, servers.values(), name=name), servers)


def _to_copy(prepared: Desk) -> Desk:
    # Or the first job of each copy would do it.
    for server in prepared.servers:
        compile_agent(prepared.there(server))
    return prepared


def _copied(prepared: Desk, folder: Path) -> Desk:
    """Copy a project, here and on its servers, to another name: to prepare each anew would be most of a test's time."""
    found = Desk(folder / _new_name(), prepared.servers)
    old = prepared.root.name
    texts = {bytes(prepared.root): bytes(found.root), old.encode(): found.root.name.encode()}
    texts |= {workspace_id(old).encode(): workspace_id(found.root.name).encode()}
    copies = {prepared.root: found.root}
    copies |= {server.home / old: server.home / found.root.name for server in found.servers.values()}
    for source, copy in copies.items():
        shutil.copytree(source, copy, symlinks=True)
        for file in [*copy.glob(".remote/**/*"), *copy.glob(".remote-scripts/*")]:
            if file.is_file() and not file.is_symlink():
                _replace_in(file, texts)
    return found


def _replace_in(file: Path, texts: Mapping[bytes, bytes]) -> None:
    before = after = file.read_bytes()
    for text, other in texts.items():
        after = after.replace(text, other)
    if after != before:
        file.write_bytes(after)


def _prepared(folder: Path, servers: Mapping[str, TestServer]) -> Desk:
    found = _made(folder, servers)
    found.does("prepare")
    return found
