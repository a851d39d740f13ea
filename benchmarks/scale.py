"""How time and memory grow with the number of servers: 1 to 64 real ones, and a picture of it."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import pictures
from benchmarks.field import Field, Spent, small_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COUNTS = (1, 2, 4, 8, 16, 32, 64)
FILES = 200


def measure(rounds: int) -> dict[str, Any]:
    """Run each command on 1 to 64 servers."""
    seconds: dict[str, list[float]] = {}
    megabytes: dict[str, list[float]] = {}
    for count in COUNTS:
        folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
        try:
            with Field(folder / "field", count) as field:
                field.fill(small_files(FILES))
                field.tool("prepare")
                for name, command in _commands(field).items():
                    spent = [command() for _ in range(rounds)]
                    seconds.setdefault(name, []).append(statistics.median(each.seconds for each in spent))
                    megabytes.setdefault(name, []).append(max(each.largest for each in spent) / 1e6)
                    print(f"  {count:>2} servers, {name}: {seconds[name][-1]:.2f} s", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return {"counts": list(COUNTS), "seconds": seconds, "megabytes": megabytes}


def _commands(field: Field) -> dict[str, Callable[[], Spent]]:
    servers = _servers(field)
    start = ("job-run", "--no-sync", "--cmd", "exec sleep 600", *servers)

    def kill() -> Spent:
        # What earlier rounds have started would be killed with it.
        field.tool("job-kill", "--yes", *servers, check=False)
        field.tool(*start)
        return field.tool("job-kill", "--yes", *servers)

    return {
        "ssh in parallel, by hand": lambda: field.everywhere("true"),
        "run": lambda: field.tool("run", "--cmd", "true"),
        "rsync, nothing changed": lambda: field.tool("rsync"),
        "prepare, nothing changed": lambda: field.tool("prepare"),
        "job-run": lambda: field.tool(*start),
        "job-list": lambda: field.tool("job-list"),
        "job-kill": kill,
    }


def _servers(field: Field) -> list[str]:
    return [word for server in field.servers for word in ("--server", server.name)]


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
