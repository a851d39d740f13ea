"""Programs that forward ports until they are stopped, and what they print meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.processes import environments, read_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer


class Forwarding:
    """The program while it runs, and the lines that it has printed."""

    command = "forward"

    def __init__(self, *arguments: str, cwd: Path, environment: dict[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "remote_tool", self.command, *arguments],
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, text: str, count: int = 1, seconds: float = 300.0) -> str:
        deadline = time.monotonic() + seconds
        while len(self._with(text)) < count and self._reading.is_alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(self._with(text)) >= count, (text, self.lines)
        return self._with(text)[-1]

    def _with(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]

    def stop(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(60)
        self._reading.join(60)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def agents_in(server: TestServer) -> list[int]:
    """The programs of ours that run on a server."""
    home = f"HOME={server.home}\0".encode()
    return [pid for pid, found in environments() if home in found and b"run_control.py" in read_of(pid, "cmdline")]
