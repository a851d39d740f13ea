"""How the time of a sync grows with the number of files: 1,000 to 200,000 of 300 bytes, one server, and a picture.

The names decide how much there is to look at: a file without a suffix may be a private key, which is never sent. Some
projects are measured with outputs beside them, as jobs leave them on a server.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import pictures
from benchmarks.contest import BY_HAND, MEMORY, OURS, Contender, Goal, Work, hold
from benchmarks.field import Field, Spent
from benchmarks.works.syncs import START, rsync_by_hand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

COUNTS = (1_000, 5_000, 20_000, 50_000, 200_000)
WITH_SUFFIX = (5_000, 50_000, 200_000)
BYTES = 300
IN_FOLDER = 100
OUTPUTS = 500_000
WITH_OUTPUTS = (5_000, 50_000)
MANY = 100_000
# Why a goal is missed, as profiles show it.
FIRST = (
    "Every file without a suffix is read for private keys, and the names, sizes and times of all are recorded. If there"
    " are outputs, rsync receives the files in a temporary folder outside of the project, where nothing half-sent is in"
    " the way of a job: a rename between folders for each file takes as long as everything else."
)
CHANGED = (
    "One changed file costs 0.08 s more than none, by hand 0.002 s. The server's copy is compared first; then rsync"
    " starts on both sides for the listed files only, and the changed lines of the records of sent files are"
    " written here and there. With 1 %, each changed file is also read for private keys."
)
NAMES = (
    "The columns that are recorded (100 bytes per file) and the names that were sent are in memory at once, besides 45"
    " MB of Python with its modules."
)
STATES = ("first", "nothing changed", "one changed", "1 % changed")


@dataclass(frozen=True)
class Project:
    """What is sent.

    Attributes:
        files: How many.
        suffix: Of their names.
        outputs: How many files that were not sent are in the project's folder on the server.
    """

    files: int
    suffix: str
    outputs: int = 0

    @property
    def rounds(self) -> int:
        """How often it is sent: a large one takes long, and varies less."""
        return 2 if self.files > MANY else 3 if self.files > MANY / 10 else 5

    def goals(self, state: str) -> tuple[Goal, ...]:
        """What its sync may cost."""
        why = {"first": FIRST, "nothing changed": START}.get(state, CHANGED)
        most = Goal(120, "MB", of=MEMORY, why=NAMES)
        return (Goal(1.5, why=why), most) if self.files > MANY else (Goal(1.2, why=why),)

    @property
    def title(self) -> str:
        """What a row calls it."""
        outputs = f", {self.outputs:,} outputs" if self.outputs else ""
        return f"{self.files:,} files{f' {self.suffix}' if self.suffix else ''}{outputs}"


def projects() -> list[Project]:
    """Return all that are measured; those with outputs have names without a suffix."""
    return [
        *(Project(files, "") for files in COUNTS),
        *(Project(files, ".txt") for files in WITH_SUFFIX),
        *(Project(files, "", OUTPUTS) for files in WITH_OUTPUTS),
    ]


def measure(rounds: int | None) -> dict[str, Any]:
    """Send each project to one server, ours and by hand in turn; rows of results, and the goals."""
    rows: list[dict[str, Any]] = []
    for project in projects():
        folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
        try:
            with Field(folder / "field", 1) as field:
                field.tool("prepare")
                rows += _states(field, project, rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    goals = [{**goal, "of": f"{row['project']}: {row['state']}"} for row in rows for goal in row["result"]["goals"]]
    return {"rows": rows, "goals": goals}


def _states(field: Field, project: Project, rounds: int | None) -> Iterator[dict[str, Any]]:
    for name, root in _roots(field).items():
        _write(root, project)
        _add_outputs(field.servers[0].home / name, project.outputs)
    for state in STATES:
        print(f" {project.title}, {state}:", flush=True)
        result = hold(_work(field, project, state), rounds=rounds)
        row = {"files": project.files, "suffix": project.suffix, "outputs": project.outputs, "state": state}
        yield {**row, "project": project.title, "result": result.as_json()}


def _work(field: Field, project: Project, state: str) -> Work:
    last = Spent(0, 0, 0, b"")

    def ours() -> float:
        nonlocal last
        last = field.tool("rsync")
        return last.seconds

    befores = {name: _before(field, name, project, state) for name in _roots(field)}
    by_hand = rsync_by_hand(field)
    contenders = (
        Contender(BY_HAND, lambda: field.shell(by_hand).seconds, befores["hand"]),
        Contender(OURS, ours, befores["ours"]),
        Contender(MEMORY, lambda: last.largest / 1e6),
    )
    return Work(
        state, f"{project.title}, {state}", contenders, project.goals(state), rounds=project.rounds, warms_up=False
    )


def _roots(field: Field) -> dict[str, Path]:
    return {"ours": field.ours, "hand": field.hand}


def _before(field: Field, name: str, project: Project, state: str) -> Callable[[], object]:
    root = _roots(field)[name]
    if state == "first":
        return lambda: _forget(field, name)
    every = {"nothing changed": 0, "one changed": project.files, "1 % changed": IN_FOLDER}[state]

    def edit() -> None:
        for number in range(0, project.files, every):
            (root / _name(number, project)).write_text(f"{time.time_ns()}\n")

    return edit if every else lambda: None


def _forget(field: Field, name: str) -> None:
    """Take the project away from the server; the outputs stay."""
    outputs, aside = field.servers[0].home / name / "outputs", field.folder / "outputs"
    if outputs.exists():
        outputs.rename(aside)
    field.forget(name)
    if aside.exists():
        outputs.parent.mkdir()
        aside.rename(outputs)


def _name(number: int, project: Project) -> str:
    return f"folder{number // IN_FOLDER:05}/file{number:07}{project.suffix}"


def _write(root: Path, project: Project) -> None:
    chance = random.Random(project.files)
    for number in range(project.files):
        path = root / _name(number, project)
        if number % IN_FOLDER == 0:
            path.parent.mkdir()
        path.write_bytes(chance.randbytes(BYTES))


def _add_outputs(project: Path, count: int) -> None:
    for number in range(count):
        folder = project / "outputs" / f"{number // 1000:04}"
        if number % 1000 == 0:
            folder.mkdir(parents=True)
        (folder / f"{number:07}.npy").touch()


def table(sizes: Mapping[str, Any]) -> str:
    """Return a row for each project as Markdown: seconds of ours and by hand, the ratio, and the largest memory."""
    lines = [
        f"| ours / by hand, s (ratio) | {' | '.join(STATES)} | memory, MB |",
        "|---|" + "---|" * (len(STATES) + 1),
    ]
    by_project: dict[str, list[Mapping[str, Any]]] = {}
    for row in sizes.get("rows", []):
        by_project.setdefault(row["project"], []).append(row["result"]["contenders"])
    for title, states in by_project.items():
        memory = max(cost for state in states for cost in state[MEMORY]["costs"])
        lines.append(f"| {title} | {' | '.join(map(_cell, states))} | {memory:.0f} |")
    return "\n".join(lines)


def _cell(contenders: Mapping[str, Any]) -> str:
    ours, hand = contenders[OURS], contenders[BY_HAND]
    return f"{ours['median']:.2f} / {hand['median']:.2f} (**{ours['ratio']:.2f}**)"


def draw(sizes: Mapping[str, Any], folder: Path) -> None:
    """Draw seconds by number of files, ours and by hand, as PNG and SVG."""
    pyplot = pictures.pyplot()
    figure, all_axes = pyplot.subplots(2, 2, figsize=(10, 7.4), layout="constrained", sharex=True)
    for state, axes in zip(STATES, all_axes.flat, strict=True):
        rows = [row for row in sizes["rows"] if row["state"] == state]
        for label, line in _lines(rows).items():
            axes.plot(*zip(*line, strict=True), markersize=4, label=label, **_STYLES[label])
        axes.set_xscale("log")
        axes.set_yscale("log")
        counts = sorted({row["files"] for row in rows})
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        pictures.plain_seconds(axes)
        axes.minorticks_off()
        axes.set_title(f"{state}, seconds")
        axes.grid(alpha=0.3)
    for axes in all_axes[-1]:
        axes.set_xlabel("files in the project")
    all_axes[0][0].legend(fontsize=8)
    pictures.save(figure, folder / "sizes")


_STYLES: dict[str, dict[str, Any]] = {
    "by hand": {"color": "black", "linestyle": "--", "marker": "o"},
    "remote_tool, names without a suffix": {"color": "tab:red", "marker": "o"},
    "remote_tool, .txt": {"color": "tab:blue", "marker": "o"},
    "remote_tool, 500,000 outputs beside": {"color": "tab:green", "linestyle": "none", "marker": "^"},
}


def _lines(rows: list[Any]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    by_hand, bare, suffix, outputs = _STYLES
    for row in rows:
        name = outputs if row["outputs"] else suffix if row["suffix"] else bare
        contenders = row["result"]["contenders"]
        found.setdefault(name, []).append((row["files"], contenders[OURS]["median"]))
        if name == bare:
            found.setdefault(by_hand, []).append((row["files"], contenders[BY_HAND]["median"]))
    return {name: found[name] for name in _STYLES if name in found}
