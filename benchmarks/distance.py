"""What distance costs: commands over wires of 1, 20 and 150 ms, and from their round trips 256 and 1,024 servers.

Measured with one server and with eight; the slope over the delay is the number of round trips that follow each other,
the slope over the servers is the CPU of one. The rest is on paper: all servers are worked on at once, so distance is
paid once, and CPU for each.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contest import Goal
from benchmarks.field import Field
from benchmarks.works import waits
from benchmarks.works.plan import by_name
from benchmarks.works.syncs import rsync_by_hand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DELAYS = (0.001, 0.020, 0.150)
COUNTS = (64, 256, 1024)
SERVERS = 8
LONG = 0.1
HOME_LINE = 20e6 / 8
CLUSTER_LINE = 1e9 / 8
AGAIN = "run again"
GOAL = Goal(
    0.55,
    "s",
    why="Three round trips are 0.45 s, and the rest is the start of the program. By hand there are two: sshd accepts"
    " input only once the command runs, and a request is input, because other users of a server can read arguments.",
)


def measure(rounds: int | None, *, servers: int = SERVERS, delays: Sequence[float] = DELAYS) -> dict[str, Any]:
    """Run commands over long wires to one server and to several.

    Args:
        rounds: How often each, instead of three times, and twice where the wire is long and so decides.
        servers: How many several are.
        delays: Round trips, in seconds, the shortest first.

    Returns:
        Seconds by command, number of servers and delay, and the goal.
    """
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    measured: dict[str, dict[str, list[float]]] = {}
    try:
        with Field(folder / "field", servers, far=True) as field:
            waits.prepare(field)
            for name, (keep, command) in _commands(field).items():
                field.configure(keep=keep)
                measured[name] = {}
                for count in (1, servers):
                    measured[name][str(count)] = _over_delays(field, partial(command, count), rounds, delays, keep=keep)
                    shown = " ".join(f"{cost:.2f}" for cost in measured[name][str(count)])
                    print(f"  {name}, {count} servers: {shown} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "seconds": measured,
        "goals": [{**GOAL.judge(measured[AGAIN]["1"][-1]), "of": f"{AGAIN}, 1 server, over 150 ms"}],
    }


def _commands(field: Field) -> dict[str, tuple[bool, Callable[[int], float]]]:
    """Return each command, and whether it may use a login that another one has left."""

    def ours(*words: str) -> Callable[[int], float]:
        return lambda count: field.tool(*words, *by_name(field.servers[:count])).seconds

    def by_hand(*, keep: bool) -> Callable[[int], float]:
        return lambda count: field.everywhere("true", keep=keep, count=count).seconds

    run = ours("run", "--cmd", "true")
    return {
        "run": (False, run),
        "ssh by hand": (False, by_hand(keep=False)),
        AGAIN: (True, run),
        "ssh by hand, ControlPersist": (True, by_hand(keep=True)),
        "rsync, nothing changed": (False, ours("rsync")),
        "rsync by hand, nothing changed": (False, lambda count: field.shell(rsync_by_hand(field, count=count)).seconds),
        "job-run": (False, ours("job-run", "--no-sync", "--cmd", "true")),
        "job-list": (False, ours("job-list", "--rsync", "--stopped")),
        "job-run --follow to the first line": (True, lambda count: waits.first_line_ours(field, count)),
        "the same by hand, ControlPersist": (True, lambda count: waits.first_line_by_hand(field, count)),
        "job-kill to the last process": (True, lambda count: waits.kill_ours(field, count)),
        "job-tail, cut to the next line": (True, lambda count: waits.reattach_ours(field, count)),
    }


def _over_delays(
    field: Field, command: Callable[[], float], rounds: int | None, delays: Sequence[float], *, keep: bool
) -> list[float]:
    seconds = []
    for delay in delays:
        for wire in field.wires:
            wire.round_trip = delay
        if keep and delay == delays[0]:
            # It logs in, and leaves a login.
            command()
            command()
        times = rounds or (3 if delay < LONG else 2)
        seconds.append(statistics.median(command() for _ in range(times)))
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
