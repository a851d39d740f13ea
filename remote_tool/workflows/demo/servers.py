"""The demo's side of its throw-away servers: starts them, knows them, ends them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteToolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LONGEST_END = 30.0


@dataclass(frozen=True)
class ThrowAwayServers:
    """Servers that run.

    Attributes:
        folder: Holds their homes, and is removed with them.
        key: The private key that they accept.
        username: Anyone may log in by any name with that key; this is the one to use.
        ports: By server name, all on 127.0.0.1.
        pid: Of the process that serves.
    """

    folder: Path
    key: Path
    username: str
    ports: Mapping[str, int]
    pid: int

    def home(self, name: str) -> Path:
        """Return the ``$HOME`` of a server."""
        return self.folder / name / "home"


@contextmanager
def throw_away_servers(names: Sequence[str]) -> Iterator[ThrowAwayServers]:
    """Serve while the context is open; afterwards no process and no file of the servers is left.

    Raises:
        RemoteToolError: They did not start.
    """
    # A session of its own: Ctrl-C in the terminal ends the demo, and the demo ends its servers.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "remote_tool.workflows.demo.server", *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    folder: Path | None = None
    try:
        assert process.stdout is not None
        servers = _read_told(process.stdout.readline(), process.pid)
        folder = servers.folder
        yield servers
    finally:
        _end(process)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _read_told(line: str, pid: int) -> ThrowAwayServers:
    if not line:
        raise RemoteToolError("The throw-away servers did not start")
    told = json.loads(line)
    return ThrowAwayServers(
        folder=Path(told["folder"]),
        key=Path(told["key"]),
        username=told["username"],
        ports=told["ports"],
        pid=pid,
    )


def _end(process: subprocess.Popen[str]) -> None:
    """Close the servers' stdin, which ends them, and wait until they have cleaned up."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(LONGEST_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
