"""Measure the first upload of a project to many servers over 20 Mbit/s, directly to each and relayed."""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import distance
from benchmarks.field import Field, small_files
from tests import network_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTS = (4, 8)
LINE = "20mbit"
NORMAL, RELAYED = "to each from here", "relayed"
# Earlier results have the names above.
SHOWN = {NORMAL: "directly", RELAYED: "relayed"}
LARGE_FILES, LARGE = 8, 1_000_000
ROUNDS = 2
# On paper: what is sent, and in each step of the way those who have it send to two more at once.
PAPER_BYTES = 100e6
LINKS = 2
# Round trips of a step: ask a server to hand on, and have the next fetch.
STEP_TRIPS = 3


def measure(rounds: int | None) -> dict[str, Any]:
    """Upload to four and to eight servers over a slow connection, both ways in turn; empty if it cannot be slowed."""
    if network_hosts.missing() is not None:
        return {}
    seconds: dict[str, dict[str, list[float]]] = {}
    line: dict[str, dict[str, float]] = {}
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    try:
        with Field(folder / "field", max(COUNTS)) as field:
            field.tool("prepare")
            files = project_files()
            field.fill(files)
            assert field.network is not None
            field.network.slow_laptop(LINE)
            for count in COUNTS:
                seconds[str(count)], line[str(count)] = _contest(field, count, rounds or ROUNDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    size = sum(len(content) for content in files.values())
    return {"bytes": size, "line": LINE, "seconds": seconds, "sent": line}


def project_files() -> dict[str, bytes]:
    """Return a project of 8 MB: large files that no compression makes smaller, and small ones."""
    chance = random.Random(0)
    large = {f"data/part{number}.bin": chance.randbytes(LARGE) for number in range(LARGE_FILES)}
    return {**large, **small_files(200)}


def _contest(field: Field, count: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    seconds: dict[str, list[float]] = {NORMAL: [], RELAYED: []}
    sent: dict[str, list[float]] = {NORMAL: [], RELAYED: []}
    names = [word for server in field.servers[:count] for word in ("--server", server.name)]
    for _ in range(rounds):
        for way, options in ((NORMAL, ()), (RELAYED, ("--relay",))):
            for server in field.servers:
                forget(server.home / "ours")
            assert field.network is not None
            before = field.network.bytes_sent()
            seconds[way].append(field.tool("rsync", *options, *names).seconds)
            sent[way].append(field.network.bytes_sent() - before)
            print(
                f"  {count} servers, {SHOWN[way]}: {seconds[way][-1]:.1f} s, {sent[way][-1] / 1e6:.1f} MB", flush=True
            )
    return seconds, {way: statistics.median(each) for way, each in sent.items()}


def forget(project: Path) -> None:
    """Make a server's copy as it was before the first sync; the environment stays."""
    for entry in project.iterdir():
        if entry.name != ".remote-scripts":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name in ("sent", "sync"):
        (project / ".remote-scripts" / name).unlink(missing_ok=True)


def each_costs(measured: Mapping[str, Any]) -> float:
    """Return the bytes over the line for one more server, when it is relayed: its lists, and the talk."""
    few, many = (measured["sent"][str(count)][RELAYED] for count in (COUNTS[0], COUNTS[-1]))
    return max(0.0, float(many - few) / (COUNTS[-1] - COUNTS[0]))


def predict(unchanged: Mapping[str, list[float]], each: float, servers: int, delay: float, *, relayed: bool) -> float:
    """Return the seconds of a first send of 100 MB to so many servers, on paper.

    Args:
        unchanged: What a sync of nothing takes, from :mod:`distance`.
        each: See :func:`each_costs`.
        servers: How many.
        delay: A round trip, in seconds.
        relayed: Whether it goes over the line once.
    """
    base = distance.predict(unchanged, servers, delay)
    if not relayed:
        return base + servers * PAPER_BYTES / distance.HOME_LINE
    steps = next(steps for steps in itertools.count() if (LINKS + 1) ** steps >= servers)
    step = LINKS * PAPER_BYTES / distance.CLUSTER_LINE + STEP_TRIPS * delay
    return base + (PAPER_BYTES + servers * each) / distance.HOME_LINE + steps * step


def table(measured: Mapping[str, Any], distances: Mapping[str, Any]) -> str:
    """Return what was measured, and what is on paper, as Markdown."""
    if not measured:
        return "Not measured."
    lines = [
        f"Measured, {measured['bytes'] / 1e6:.0f} MB over 20 Mbit/s:",
        "",
        f"| servers | {SHOWN[NORMAL]}, s | {RELAYED}, s | ratio | uploaded, MB: {SHOWN[NORMAL]} | {RELAYED} |",
        "|---|---|---|---|---|---|",
    ]
    for count, ways in measured["seconds"].items():
        normal, relayed = (statistics.median(ways[way]) for way in (NORMAL, RELAYED))
        sent = " | ".join(f"{measured['sent'][count][way] / 1e6:.1f}" for way in (NORMAL, RELAYED))
        lines.append(f"| {count} | {normal:.1f} | {relayed:.1f} | {relayed / normal:.2f} | {sent} |")
    unchanged = distances.get("rsync, nothing changed")
    return "\n".join(lines + (paper(unchanged, each_costs(measured)) if unchanged else []))


def paper(unchanged: Mapping[str, list[float]], each: float) -> list[str]:
    """Return the table that nobody measured."""
    columns = [(count, delay) for count in distance.COUNTS for delay in distance.DELAYS]
    head = " | ".join(f"{count} at {delay * 1000:.0f} ms" for count, delay in columns)
    lines = ["", "Calculated, first upload of 100 MB over 20 Mbit/s, with 1 Gbit/s between servers:", ""]
    lines += [f"| seconds | {head} |", "|---|" + "---|" * len(columns)]
    for way in (NORMAL, RELAYED):
        costs = (predict(unchanged, each, *column, relayed=way == RELAYED) for column in columns)
        lines.append(f"| {SHOWN[way]} | " + " | ".join(f"{cost:,.0f}" for cost in costs) + " |")
    return lines
