"""``make bench``: hold the contests, draw the curves, and rewrite docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import distance, queue, relay, report, scale, sizes
from benchmarks.contest import hold
from benchmarks.field import Field
from benchmarks.works import PLANS
from tests.leftovers import remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCUMENTS = Path(__file__).parent.parent / "docs"
RESULTS = DOCUMENTS / "benchmarks" / "results.json"
CURVES = {
    "sizes": sizes.measure,
    "scale": scale.measure,
    "distance": distance.measure,
    "relay": relay.measure,
    "queue": queue.measure,
}
PICTURES = {"sizes": sizes.draw, "scale": scale.draw}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and write the page unless that is only a part."""
    chosen = _options(arguments)
    remove_leftovers()
    results = _old(chosen.output) if chosen.keep else {}
    results["machine"] = report.machine()
    missing = chosen.works or [*PLANS, *CURVES]
    failed = []
    try:
        while missing:
            if not _try(missing[0], results, chosen):
                failed.append(missing[0])
            del missing[0]
    finally:
        print(report.goals(results))
        if failed or missing:
            again = f"make bench WORKS='{' '.join(failed + missing)}' BENCH_OPTIONS=--keep"
            print(f"Not measured: {' '.join(failed + missing)}; to add them: {again}", flush=True)
    if failed:
        sys.exit(1)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("works", nargs="*", metavar="TASK", help=f"{', '.join([*PLANS, *CURVES])}; default: all")
    parser.add_argument("--rounds", type=int, help="Rounds to measure instead of each task's default.")
    parser.add_argument("--labml", type=Path, help="Python of an environment with labml_remote 0.1.1.")
    parser.add_argument("--output", type=Path, help="File to write the results to; default: that of the page.")
    parser.add_argument(
        "--keep", action="store_true", help="Keep the results of other tasks in that file; needed to put a part there."
    )
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.works) - {*PLANS, *CURVES}
    if unknown:
        parser.error(f"unknown task: {', '.join(sorted(unknown))}")
    if chosen.output is None and (chosen.keep or not chosen.works):
        chosen.output = RESULTS
    return chosen


def _try(key: str, results: dict[str, Any], chosen: argparse.Namespace) -> bool:
    """Measure one task, and write all that there is: a run that is interrupted has shown something."""
    begin = time.monotonic()
    try:
        _measure(key, results, chosen)
    except Exception as error:  # noqa: BLE001 - a bug in one work must not cost the others
        print(f"  {key} failed: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"  {key} took {time.monotonic() - begin:.0f} s", flush=True)
    if chosen.output is not None:
        report.write(chosen.output, json.dumps(results, indent=1) + "\n")
    if chosen.output == RESULTS:
        report.write_page(DOCUMENTS / "benchmarks.md", results)
    return True


def _measure(key: str, results: dict[str, Any], chosen: argparse.Namespace) -> None:
    if key in CURVES:
        print(f"{key}:", flush=True)
        results[key] = CURVES[key](chosen.rounds)
        if key in PICTURES and chosen.output is not None:
            PICTURES[key](results[key], chosen.output.parent)
        return
    plan = PLANS[key]
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    try:
        with Field(folder / "field", plan.servers, labml=chosen.labml) as field:
            work = plan.make(field)
            print(f"{key}: {work.title}; {', '.join(goal.text for goal in work.goals)}", flush=True)
            works = {**results.get("works", {}), key: hold(work, rounds=chosen.rounds).as_json()}
            results["works"] = {key: works[key] for key in PLANS if key in works}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _old(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


if __name__ == "__main__":
    # Servers and jobs end with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted")
