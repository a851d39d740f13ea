"""Draw the floors of docs/architecture.md from the contracts of import-linter, so that the picture stays true.

``python -m tests.floors`` writes it; with ``--check``, as in ``make check``, it fails when the picture is stale.
"""

from __future__ import annotations

import sys
import tomllib
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PICTURE = "docs/floors.svg"
PACKAGE = "remote_tool"

PURPOSE = {
    "__main__": "starts the program",
    "cli": "options in, one call, output",
    "job": "jobs in the API of labml_remote",
    "server": "servers in the API of labml_remote",
    "workspace": "the synchronous Python API",
    "workflows": "one async function per journey",
    "transport": "SSH and rsync",
    "environments": "plans an installation",
    "launchers": "plans a launch",
    "jobs": "local job records",
    "config": "configs.yaml as frozen values",
    "paths": "every local and remote path",
    "system": "files, locks and programs of this machine",
    "readable": "sizes, for people",
    "agent": "answers requests, runs jobs",
    "protocol": "what both sides know: requests, records, limits",
    "errors": "the error tree",
    "redaction": "values that are never shown",
}

FOOT = "A module imports only from further down. Purple: third-party packages, which no other floor imports."
OWN = "standard library only"
WIDTH = 900
SIDE = 210
LEFT = 24
GAP = 8
ROW = 34
ROOMS_ROW = 56
STACKED_ROW = 90
TOP = 58
STYLE = """
  text { font: 13px ui-sans-serif, system-ui, Helvetica, Arial, sans-serif; fill: #24292f; }
  .name { font: 600 14px ui-monospace, Menlo, Consolas, monospace; }
  .rooms { font-size: 12px; fill: #57606a; }
  .title { font-weight: 600; fill: #57606a; }
  .needs { font-size: 12px; fill: #8250df; }
  rect { rx: 6px; stroke: #d0d7de; fill: #ffffff; }
  .page { fill: #f6f8fa; rx: 10px; }
  .server { fill: #ddf4ff; stroke: #54aeff; }
"""


class Floors(NamedTuple):
    """What the contracts say, and the rooms that there are."""

    floors: list[list[str]]
    on_servers: set[str]
    standard_library: set[str]
    needs: dict[str, list[str]]
    rooms: dict[str, list[str]]


def read_floors(root: Path) -> Floors:
    """Read the contracts of ``pyproject.toml``, and the folders of the package."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    floors = [[name.strip() for name in layer.split("|")] for layer in layers]
    servers = {
        module for each in contracts if not each.get("allowed_importers", [""]) for module in each["protected_modules"]
    }
    own = {module for each in contracts if "asyncssh" in each.get("forbidden_modules", []) for module in sources(each)}
    needs: dict[str, list[str]] = {}
    for contract in contracts:
        for importer, _, package in (line.partition(" -> ") for line in contract.get("ignore_imports", [])):
            if contract["type"] == "forbidden":
                _, floor, *room = importer.split(".")
                needs[floor] = sorted({*needs.get(floor, []), f"{package} ({room[0]})" if room[1:] else package})
    rooms = {name: rooms_of(root / PACKAGE / name) for floor in floors for name in floor}
    return Floors(floors, {last(module) for module in servers}, own, needs, rooms)


def sources(contract: dict[str, Any]) -> set[str]:
    """The floors that a contract is about, without the package itself."""
    return {last(module) for module in contract["source_modules"] if module != PACKAGE}


def last(module: str) -> str:
    """The last part of a module's name."""
    return module.rpartition(".")[2]


def rooms_of(folder: Path) -> list[str]:
    """The subpackages of a package."""
    return sorted(path.parent.name for path in folder.glob("*/__init__.py"))


def draw(floors: Floors) -> str:
    """The picture, as SVG."""
    parts: list[str] = []
    y = TOP
    across = WIDTH - 2 * LEFT
    here = across - SIDE - 2 * GAP
    both_from = 0
    for floor in floors.floors:
        if floor[0] in floors.on_servers:
            continue
        # What servers have too reaches over to their side.
        is_shared = floor[0] in floors.standard_library
        both_from = y if is_shared else both_from
        height = STACKED_ROW if len(floor) > 1 else ROOMS_ROW if floors.rooms[floor[0]] else ROW
        width = ((across if is_shared else here) - GAP * (len(floor) - 1)) // len(floor)
        for number, name in enumerate(floor):
            parts += box(floors, name, (LEFT + number * (width + GAP), y, width, height), stacked=len(floor) > 1)
        y += height + GAP
    for name in sorted(floors.on_servers):
        parts += side_box(floors, name, both_from)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 40}" width="{WIDTH}" height="{y + 40}">',
        f"<title>The floors of {PACKAGE}: a module imports only from further down</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="1" y="1" width="{WIDTH - 2}" height="{y + 38}"/>',
        text(LEFT, 34, "On your machine", "title"),
        text(WIDTH - LEFT - SIDE, 34, "On each server", "title"),
        text(LEFT, y + 18, FOOT, "rooms"),
    ]
    return "\n".join([*head, *filter(None, parts), "</svg>", ""])


def box(floors: Floors, name: str, place: tuple[int, int, int, int], *, stacked: bool) -> list[str]:
    """One floor, or a part of one: its name, what it is for, what it needs, its rooms."""
    x, y, width, height = place
    needs = ", ".join(floors.needs.get(name, []))
    rooms = " · ".join(floors.rooms[name])
    is_own = name in floors.standard_library
    note = (OWN, "rooms") if is_own else (needs, "needs")
    kind = ' class="server"' if is_own else ""
    drawn = [f'<rect{kind} x="{x}" y="{y}" width="{width}" height="{height}"/>', text(x + 10, y + 22, name, "name")]
    if stacked:
        lines = [(PURPOSE[name], ""), (rooms, "rooms"), note]
        under = enumerate(line for line in lines if line[0])
        return drawn + [text(x + 10, y + 42 + 18 * number, *line) for number, line in under]
    drawn.append(text(x + 130, y + 22, PURPOSE[name]))
    drawn.append(text(x + width - 10, y + 22, *note, "end"))
    return [*drawn, text(x + 130, y + 43, rooms, "rooms")] if rooms else drawn


def side_box(floors: Floors, name: str, bottom: int) -> list[str]:
    """What runs on servers: beside the floors of this side, above what both sides know."""
    x = WIDTH - LEFT - SIDE
    lines = [(PURPOSE[name], ""), (OWN, ""), *((room, "rooms") for room in floors.rooms[name])]
    height = 40 + 19 * len(lines)
    y = bottom - GAP - height
    drawn = [
        f'<rect class="server" x="{x}" y="{y}" width="{SIDE}" height="{height}"/>',
        text(x + 12, y + 24, name, "name"),
    ]
    return drawn + [text(x + 12, y + 46 + 19 * number, *line) for number, line in enumerate(lines)]


def text(x: int, y: int, words: str, kind: str = "", anchor: str = "") -> str:
    """A line of text."""
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text{attributes} x="{x}" y="{y}">{escape(words)}</text>' if words else ""


if __name__ == "__main__":
    drawn = draw(read_floors(ROOT))
    if sys.argv[1:] != ["--check"]:
        (ROOT / PICTURE).write_text(drawn)
    elif (ROOT / PICTURE).read_text() != drawn:
        sys.exit(f"{PICTURE} is not made from the contracts as they are: run make reference")
