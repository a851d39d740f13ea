"""A contract for import-linter: from outside a room, only its doors may be imported.

A room is a folder of modules, and its doors are what ``__all__`` in its ``__init__.py`` lists: modules, and rooms
within it. What is behind them may be moved without looking elsewhere.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from importlinter import Contract, ContractCheck, output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grimp import ImportGraph

ROOT = Path(__file__).parents[1]


class DoorsContract(Contract):
    """Checks every import of a module of another room."""

    type_name = "doors"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 - as in the base class
        """Find the imports that do not go through a door."""
        found = [
            f"{importer} -> {imported}: {room} does not list {part} in __all__"
            for imported in sorted(graph.modules)
            for importer in sorted(graph.find_modules_that_directly_import(imported))
            for room, part in entered(importer, imported)
            if part not in doors(room)
        ]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports, and what is to be done."""
        for line in check.metadata["found"]:
            output.print_error(line, bold=False)
        output.new_line()
        output.print("Import what the room shows, or make the module one of its doors, if it is meant for others.")


def entered(importer: str, imported: str) -> Iterator[tuple[str, str]]:
    """Yield the rooms that an import enters, from the outside in, each with what it imports from it."""
    parts = imported.split(".")
    for depth in range(2, len(parts)):
        room = ".".join(parts[:depth])
        if not f"{importer}.".startswith(f"{room}."):
            yield room, parts[depth]


@cache
def doors(room: str) -> frozenset[str]:
    """Return the names in ``__all__`` of a package; empty if it has none."""
    init = ROOT.joinpath(*room.split("."), "__init__.py")
    for statement in ast.parse(init.read_text(encoding="utf-8")).body if init.exists() else ():
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(statement.value))
    return frozenset()
