"""What distance costs: commands over wires of 1, 20 and 150 ms, and from their round trips 256 and 1,024 servers.

Measured with one server and with eight; the slope over the delay is the number of round trips that follow each other,
the slope over the servers is the CPU of one. The rest is on paper: all servers are worked on at once, so distance is
paid once, and CPU for each.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.delay import LongWire
from benchmarks.field import Field, small_files
from tests.project import write_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.sshd import TestServer

DELAYS = (0.001, 0.020, 0.150)
COUNTS = (64, 256, 1024)
SERVERS = 8
HOME_LINE = 20e6 / 8
CLUSTER_LINE = 1e9 / 8


class _Far:
    """A server at the other end of a long wire."""

    address = "127.0.0.1"

    def __init__(self, server: TestServer, wire: LongWire) -> None:
        self.name, self.port = server.name, wire.port
        self.username, self.key = server.username, server.key


def measure(rounds: int) -> dict[str, Any]:
    """Run commands over long wires to one server and to eight; seconds by command, number of servers and delay."""
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    try:
        with ExitStack() as stack:
            field = stack.enter_context(Field(folder / "field", SERVERS, namespaces=False))
            wires = [stack.enter_context(LongWire(server.port)) for server in field.servers]
            far = [_Far(server, wire) for server, wire in zip(field.servers, wires, strict=True)]  # type: ignore[arg-type]
            write_configuration(field.ours, far, name="ours", host_keys="accept-new")
            field.fill(small_files(200))
            field.tool("prepare")
            return {
                name: {str(count): _over_delays(wires, command, count, rounds) for count in (1, SERVERS)}
                for name, command in _commands(field).items()
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _commands(field: Field) -> dict[str, Callable[[int], float]]:
    def on(*words: str) -> Callable[[int], float]:
        def run(count: int) -> float:
            names = [word for server in field.servers[:count] for word in ("--server", server.name)]
            return field.tool(*words, *names).seconds

        return run

    return {
        "run": on("run", "--cmd", "true"),
        "rsync, nothing changed": on("rsync"),
        "job-run": on("job-run", "--no-sync", "--cmd", "true"),
        "job-list": on("job-list", "--rsync", "--stopped"),
    }


def _over_delays(wires: list[LongWire], command: Callable[[int], float], count: int, rounds: int) -> list[float]:
    seconds = []
    for delay in DELAYS:
        for wire in wires:
            wire.round_trip = delay
        seconds.append(statistics.median(command(count) for _ in range(rounds)))
    return seconds


def round_trips(measured: Mapping[str, list[float]]) -> float:
    """Return how many round trips follow each other in a command on one server, login and TCP included."""
    seconds = measured["1"]
    return (seconds[-1] - seconds[0]) / (DELAYS[-1] - DELAYS[0])


def predict(measured: Mapping[str, list[float]], servers: int, delay: float) -> float:
    """Return the seconds of a command on so many servers: the way is paid once, the CPU for each."""
    one, many = measured["1"], measured[str(SERVERS)]
    trips = round_trips(measured)
    each = max(0.0, (many[0] - one[0]) / (SERVERS - 1))
    return one[0] + trips * (delay - DELAYS[0]) + (servers - 1) * each


def table(measured: Mapping[str, Any]) -> str:
    """Return what was measured, the round trips, and what is on paper, as Markdown."""
    head = ["one server: 1, 20, 150 ms", "eight: 1, 20, 150 ms", "round trips"]
    head += [f"{count} at {delay * 1000:.0f} ms" for count in COUNTS for delay in DELAYS]
    lines = ["| seconds | " + " | ".join(head) + " |", "|---|" + "---|" * len(head)]
    for name, values in measured.items():
        cells = [" ".join(f"{cost:.2f}" for cost in values[count]) for count in ("1", str(SERVERS))]
        cells.append(f"{round_trips(values):.1f}")
        cells += [f"{predict(values, count, delay):.1f}" for count in COUNTS for delay in DELAYS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
