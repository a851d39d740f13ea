"""A server that answers what a test wants, one that is silent and honest ones: one sshd, told apart by address."""

from __future__ import annotations

import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from remote_tool import Workspace
from remote_tool.cli.app import main
from remote_tool.cli.output import streams
from remote_tool.jobs.job import Job, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from tests.extended.hostile import forced
from tests.program import remote_tool
from tests.project import THIS_PYTHON, make_workspace_id
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESSES = {
    "bad": "127.0.0.1",
    "honest": "127.0.0.2",
    "silent": "127.0.0.3",
    "third": "127.0.0.4",
    "last": "127.0.0.5",
}
# Seconds within which every command ends that the tests give; a machine at work may be slow.
BOUND = 60.0
# Shorter than in life, as the tests wait for it, and longer than an honest server needs on a busy machine.
SILENCE = 5.0
# All that may ever be written into a project.
OURS = re.compile(
    r"\.remote(/(configs\.yaml|known_hosts(\.lock)?|logs(/(listing|workspace|[^/]+\.(log|known-copy)))?"
    r"|jobs(/(lock|last_key|\.index|[0-9]{8}-[0-9]{6}-[0-9a-f]{32}(/(job\.(yaml|out|err)|ranks(/\d+(/\d+(/(out|err|error))?)?)?))?))?))?"
    r"|train\.py|hello\.py"
)
COLOURS = re.compile(r"\x1b\[[0-9;:]{0,40}m")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass
class Ended:
    """How a command ended, and what it showed."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def shown(self) -> str:
        return self.out + self.err


@dataclass
class Desk:
    """A user's fresh project, the server's home, and the program, run here as on a terminal."""

    root: Path
    server: TestServer
    capture: pytest.CaptureFixture[str]

    def answer(self, source: str) -> None:
        """Say what the hostile server does: Python, with mark, script and request."""
        (self.server.home / "answer.py").write_text(source)

    def job(self, **changes: object) -> Job:
        """Record a running job of the hostile server."""
        values: dict[str, object] = {
            "key": 0,
            "id": new_job_id(),
            "server": "bad",
            "command": "python train.py",
            "state": JobState.RUNNING,
            "created_at": time.time(),
            "seen_at": time.time(),
        }
        return Registry(self.root / ".remote" / "jobs").adopt([Job(**{**values, **changes})])[0]  # type: ignore[arg-type]

    def jobs(self) -> list[Job]:
        return Registry(self.root / ".remote" / "jobs").load()[0]

    def program(self, *arguments: str) -> Ended:
        """Run the program in this process, which cannot catch what is not caught inside."""
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        began = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.root)
            patch.setattr(sys, "argv", ["remote-tool", *arguments])
            patch.setattr(streams, "is_terminal", lambda _descriptor: True)
            try:
                with pytest.raises(SystemExit) as left:
                    main()
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        code = left.value.code
        out, err = self.capture.readouterr()
        return Ended(code if isinstance(code, int) else 1, out, err, time.monotonic() - began)

    def check(self, ended: Ended) -> None:
        """Whatever came: in time, told as ours, harmless for the terminal, and nothing but ours was written."""
        assert ended.seconds < BOUND
        assert "Traceback" not in ended.shown, ended.shown
        plain = COLOURS.sub("", ended.shown).replace("\r", "")
        assert not STEERING.search(plain), plain
        assert len(ended.err) < 20_000
        strange = [
            str(path)
            for path in self.root.parent.rglob("*")
            if not OURS.fullmatch(path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else "//")
            and path != self.root
        ]
        assert not strange


@pytest.fixture(scope="session")
def hostile_server(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[TestServer]:
    """A prepared server with five addresses."""
    folder = tmp_path_factory.mktemp("hostile")
    options = {
        "ListenAddress": "\nListenAddress ".join(ADDRESSES.values()),
        "ForceCommand": f"{sys.executable} -I -S {Path(forced.__file__)}",
        "MaxStartups": "100",
    }
    with TestServer("hostile", folder / "server", ssh_key, options) as server:
        root = make_hostile_project(folder / "first" / "project", server, ("honest",))
        prepared = remote_tool("prepare", cwd=root)
        assert prepared.returncode == 0, prepared.stderr
        Workspace.find(root).start("honest", "echo an honest word", tags=("honest-tag",)).wait(300)
        yield server


def make_hostile_project(root: Path, server: TestServer, names: tuple[str, ...]) -> Path:
    make_workspace_id(root)
    values = {
        "name": "project",
        "environment": THIS_PYTHON,
        "servers": {
            name: {
                "hostname": ADDRESSES[name],
                "port": server.port,
                "username": server.username,
                "private_key": str(server.key),
            }
            for name in names
        },
    }
    (root / ".remote" / "configs.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    (root / "train.py").write_text("print('hello')\n")
    return root


@pytest.fixture
def desk(
    hostile_server: TestServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Desk]:
    """A fresh project with the hostile and an honest server."""
    root = make_hostile_project(tmp_path / "here" / "project", hostile_server, ("bad", "honest"))
    yield Desk(root, hostile_server, capfd)
    (hostile_server.home / "answer.py").unlink(missing_ok=True)
