"""``make bench``: hold the contests, draw the curves, and rewrite docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import distance, relay, report, scale
from benchmarks.contest import hold
from benchmarks.field import Field
from benchmarks.works import PLANS
from tests.leftovers import remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCUMENTS = Path(__file__).parent.parent / "docs"
RESULTS = DOCUMENTS / "benchmarks"
CURVES = {"scale": scale.measure, "distance": distance.measure, "relay": relay.measure}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for; only a whole run rewrites the page, a part goes into its own file."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("works", nargs="*", metavar="TASK", help=f"{', '.join([*PLANS, *CURVES])}; default: all")
    parser.add_argument("--rounds", type=int, help="Rounds to measure instead of each task's default.")
    parser.add_argument("--labml", type=Path, help="Python of an environment with labml_remote 0.1.1.")
    parser.add_argument("--output", type=Path, default=RESULTS / "results.json", help="File to write the results to.")
    parser.add_argument("--keep", action="store_true", help="Keep the results of other tasks in that file.")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.works) - {*PLANS, *CURVES}
    if unknown:
        parser.error(f"unknown task: {', '.join(sorted(unknown))}")
    remove_leftovers()
    results = _old(chosen.output) if chosen.keep else {}
    works = chosen.works or [*PLANS, *CURVES]
    results["machine"] = report.machine()
    for key in works:
        if key in CURVES:
            results[key] = CURVES[key](chosen.rounds or 3)
        else:
            results.setdefault("works", {})[key] = _measure(key, chosen.rounds, chosen.labml)
        # After each work: a run that is interrupted has shown something.
        report.write(chosen.output, json.dumps(results, indent=1) + "\n")
    if chosen.output == RESULTS / "results.json":
        report.write_page(DOCUMENTS / "benchmarks.md", results)


def _measure(key: str, rounds: int | None, labml: Path | None) -> dict[str, Any]:
    plan = PLANS[key]
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    try:
        with Field(folder / "field", plan.servers, labml=labml) as field:
            work = plan.make(field)
            print(f"{key}: {work.title}; {work.goal}", flush=True)
            return hold(work, rounds=rounds).as_json()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _old(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


if __name__ == "__main__":
    main()
