"""The page: the table of ratios, the machine, and the curves."""

from __future__ import annotations

import os
import platform
import statistics
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import distance, queue, relay, sizes
from benchmarks.contest import BY_HAND, LABML, OURS, PARALLEL_SSH

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGIN, END = "<!-- begin: {} (make bench writes this) -->", "<!-- end: {} -->"

SCALE_PICTURE = "\n\n![Seconds and memory by number of servers](benchmarks/scale.svg)"
SIZES_PICTURE = "\n\n![Seconds of a sync by number of files, and by hand](benchmarks/sizes.svg)"


def machine() -> dict[str, object]:
    """Say where it was measured: what decides the figures, and nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "system": platform.system(),
        "python": platform.python_version(),
        "processor": _processor(),
    }


def write(file: Path, text: str) -> None:
    """Write a whole file or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(file.name + ".new")
    beside.write_text(text)
    beside.replace(file)


def write_page(page: Path, results: Mapping[str, Any]) -> None:
    """Put tables and curves between the marks of the page; the prose around them is written by hand."""
    text = page.read_text()
    seconds = results.get("distance", {}).get("seconds", {})
    for name, part in (
        ("machine", f"{_machine_line(results['machine'])} All values: [results.json](benchmarks/results.json)."),
        ("works", works_table(results.get("works", {}))),
        ("missed", missed(results)),
        ("sizes", sizes.table(results["sizes"]) + SIZES_PICTURE if "sizes" in results else "Not measured."),
        ("scale", scale_table(results.get("scale", {})) + SCALE_PICTURE if "scale" in results else ""),
        ("distance", distance.table(seconds)),
        ("relay", relay.table(results.get("relay", {}), seconds)),
        ("queue", queue.table(results.get("queue", {}))),
    ):
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        if not begin or not end:
            raise ValueError(f"{page} has no place for {name!r}")
        text = f"{before}{begin}\n{part}\n{end}{after}"
    write(page, text)


def works_table(works: Mapping[str, Any]) -> str:
    """Return the ratios as Markdown: one row per work, 1.0 is what it is compared with."""
    lines = [
        "| task | goal | remote_tool | by hand | labml_remote | parallel-ssh | our seconds (quartiles) |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in works.values():
        shown = [_ratio(work, name) for name in (OURS, BY_HAND, LABML, PARALLEL_SSH)]
        lines.append(f"| {work['title']} | {_goals(work)} | {' | '.join(shown)} | {_spread(work)} |")
    return "\n".join(lines)


def goals(results: Mapping[str, Any]) -> str:
    """Return a line for each goal: met, missed or not measured, of what, and the value; and why it is missed."""
    lines = ["Goals:"]
    for goal, title in _judged(results):
        value = "–" if goal["value"] is None else f"{goal['value']:.2f}"
        lines.append(f"  {_VERDICTS[goal['met']]:<12} {value:>6}, {goal['goal']}: {title}")
        lines += textwrap.wrap(goal.get("why", ""), 110, initial_indent=" " * 22, subsequent_indent=" " * 22)
    return "\n".join(lines)


def missed(results: Mapping[str, Any]) -> str:
    """Return the goals that are missed and why, as Markdown; tasks that miss for the same reason share a row."""
    titles: dict[str, list[str]] = {}
    for goal, title in _judged(results):
        if goal["met"] is False:
            shown = f"{title}: {goal['value']:.2f}, goal {goal['goal']}"
            titles.setdefault(goal.get("why") or "Not known.", []).append(shown)
    lines = ["| missed | reason |", "|---|---|"]
    return "\n".join(lines + [f"| {'; '.join(shown)} | {why} |" for why, shown in titles.items()])


def _judged(results: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    judged = [(goal, work["title"]) for work in results.get("works", {}).values() for goal in work["goals"]]
    curves = [results.get(curve, {}).get("goals", []) for curve in ("sizes", "distance")]
    return judged + [(goal, goal["of"]) for goals in curves for goal in goals]


_VERDICTS = {True: "met", False: "missed", None: "not measured"}


def _goals(work: Mapping[str, Any]) -> str:
    return "; ".join(f"{goal['goal']} {_VERDICTS[goal['met']]}" for goal in work["goals"]) or "–"


def scale_table(scale: Mapping[str, Any]) -> str:
    """Return seconds by number of servers as Markdown."""
    counts = scale.get("counts", [])
    lines = ["| | " + " | ".join(str(count) for count in counts) + " |", "|---|" + "---|" * len(counts)]
    for name, costs in scale.get("seconds", {}).items():
        lines.append(f"| {name}, s | " + " | ".join(f"{cost:.2f}" for cost in costs) + " |")
    for name, costs in scale.get("megabytes", {}).items():
        lines.append(f"| {name}, MB | " + " | ".join(f"{cost:.0f}" for cost in costs) + " |")
    return "\n".join(lines)


def _ratio(work: Mapping[str, Any], name: str) -> str:
    found = work["contenders"].get(name)
    if found is None:
        return "–"
    if found["ratio"] is None:
        return f"{found['median']:.3g} {work['unit']}"
    shown = f"{found['ratio']:.2f}"
    return f"**{shown}**" if name == OURS else shown


def _spread(work: Mapping[str, Any]) -> str:
    costs = work["contenders"][OURS]["costs"]
    if len(costs) < 2:
        return f"{costs[0]:.3g} {work['unit']}{_besides(work)}"
    low, middle, high = statistics.quantiles(costs, n=4, method="inclusive")
    unit = "" if work["unit"] == "s" else f" {work['unit']}"
    return f"{middle:.3g}{unit} ({low:.3g}–{high:.3g}){_besides(work)}"


def _besides(work: Mapping[str, Any]) -> str:
    """Return what else was measured of ours, such as ``its memory, MB``."""
    found = ""
    for name, values in work["contenders"].items():
        if name.startswith("its "):
            what, _, unit = name.partition(", ")
            found += f"; {what} {values['median']:.3g} {unit or work['unit']}"
    return found


def _machine_line(values: Mapping[str, Any]) -> str:
    return (
        f"{values['cores']} cores ({values['processor']}), {values['memory_gb']} GB, {values['system']},"
        f" Python {values['python']}; the servers are on the same machine."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
