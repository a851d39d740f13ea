"""How time and memory grow with the number of servers: 1 to 64 real ones, and a picture of it."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import pictures, warmth
from benchmarks.field import Field, Spent, small_files
from benchmarks.works.plan import by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COUNTS = (1, 4, 16, 64)
FILES = 200
ROUNDS = 3


def measure(rounds: int | None) -> dict[str, Any]:
    """Run each command on 1 to 64 of the servers of one field."""
    seconds: dict[str, list[float]] = {}
    megabytes: dict[str, list[float]] = {}
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    try:
        with Field(folder / "field", max(COUNTS)) as field:
            field.fill(small_files(FILES))
            field.tool("prepare")
            for count in COUNTS:
                for name, spent in _spent(_commands(field, count), rounds or ROUNDS).items():
                    seconds.setdefault(name, []).append(statistics.median(each.seconds for each in spent))
                    megabytes.setdefault(name, []).append(max(each.largest for each in spent) / 1e6)
                    print(f"  {count:>2} servers, {name}: {seconds[name][-1]:.2f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"counts": list(COUNTS), "seconds": seconds, "megabytes": megabytes}


def _commands(field: Field, count: int) -> dict[str, Callable[[], Spent]]:
    """Return the commands in their order: a job is started, listed, and stopped."""
    servers = by_name(field.servers[:count])

    def ours(*words: str) -> Callable[[], Spent]:
        return lambda: field.tool(*words, *servers)

    return {
        "ssh in parallel, by hand": lambda: field.everywhere("true", count=count),
        "run": ours("run", "--cmd", "true"),
        "rsync, nothing changed": ours("rsync"),
        "prepare, nothing changed": ours("prepare"),
        "job-run": ours("job-run", "--no-sync", "--cmd", "exec sleep 600"),
        "job-list": ours("job-list"),
        "job-kill": ours("job-kill", "--yes"),
    }


def _spent(commands: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, list[Spent]]:
    spent: dict[str, list[Spent]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            warmth.warm()
            spent[name].append(command())
    return spent


def draw(scale: Mapping[str, Any], folder: Path) -> None:
    """Draw seconds and memory by number of servers, as PNG and SVG."""
    figure, (time_axes, memory_axes) = pictures.pyplot().subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for name, costs in scale["seconds"].items():
        style = {"color": "black", "linestyle": "--"} if "by hand" in name else {}
        time_axes.plot(scale["counts"], costs, marker="o", markersize=3, label=name, **style)
    for name, sizes in scale["megabytes"].items():
        if "by hand" not in name:
            memory_axes.plot(scale["counts"], sizes, marker="o", markersize=3, label=name)
    for axes, title in ((time_axes, "seconds, whole program"), (memory_axes, "MB of memory, whole program")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(scale["counts"], [str(count) for count in scale["counts"]])
        axes.set_xlabel("servers")
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    time_axes.set_yscale("log")
    time_axes.set_ylim(bottom=0.1)
    pictures.plain_seconds(time_axes)
    time_axes.legend(fontsize=8)
    pictures.save(figure, folder / "scale")
