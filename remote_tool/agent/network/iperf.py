"""Measure with iperf3, where it is installed, and end it with the measurement."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

from remote_tool.agent.network.tcp_streams import STREAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

_PROGRAM = "iperf3"
# timeout(1) ends a program even after its parent has died.
_LIMITER = "timeout"
_START_SECONDS = 3.0
_EXTRA_SECONDS = 8
_PAUSE = 0.1
_NOT_THERE = "unable to connect"


class IperfError(Exception):
    """iperf3 did not measure."""


def is_there() -> bool:
    """Return whether iperf3 is usable here."""
    return shutil.which(_PROGRAM) is not None and shutil.which(_LIMITER) is not None


class IperfRun:
    """The programs of a measurement; they end with it."""

    def __init__(self) -> None:
        self._started: List[subprocess.Popen[bytes]] = []

    def listen(self, address: str, port: int, seconds: float) -> None:
        """Start iperf3 as a server for one measurement."""
        self._start([_PROGRAM, "-s", "-1", "-B", address, "-p", str(port)], seconds + _START_SECONDS)

    def measure(self, address: str, port: int, seconds: float, *, back: bool) -> float:
        """Return bits per second to the other side, or back from it, as counted by the receiver.

        IperfError when the measurement fails.
        """
        words = [_PROGRAM, "-c", address, "-p", str(port), "-t", str(_whole(seconds)), "-P", str(STREAMS), "-J"]
        deadline = time.monotonic() + _START_SECONDS
        while True:
            text, _ = self._start([*words, *(["-R"] if back else [])], seconds).communicate()
            answer = _parse(text)
            error = str(answer.get("error", ""))
            # The server has only just started.
            if _NOT_THERE not in error or time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        try:
            return float(answer["end"]["sum_received"]["bits_per_second"])
        except (KeyError, TypeError, ValueError) as problem:
            raise IperfError(error or "no result") from problem

    def end(self) -> None:
        """End the programs that are still running."""
        for process in self._started:
            if process.poll() is None:
                process.terminate()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()

    def _start(self, words: List[str], seconds: float) -> subprocess.Popen[bytes]:
        bound = str(_whole(seconds) + _EXTRA_SECONDS)
        process = subprocess.Popen(
            [_LIMITER, bound, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if "-J" in words else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(process)
        return process


def _whole(seconds: float) -> int:
    return max(1, round(seconds))


def _parse(text: bytes) -> Any:  # noqa: ANN401 - of another program
    try:
        answer = json.loads(text.decode("utf-8", "replace"))
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {}
