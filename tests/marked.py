"""Which tests there are and which rows of the list of faults they show, read from the files without running them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

TESTS = Path(__file__).parent


class Marked(NamedTuple):
    """A test as pytest names it, and the numbers in its ``row`` markers."""

    name: str
    rows: frozenset[int]


@cache
def all_tests() -> dict[str, Marked]:
    """Return every test of the project by its name, such as ``tests/extended/test_secrets.py::test_one``."""
    found = [test for path in sorted(TESTS.rglob("test_*.py")) for test in _in_file(path)]
    return {test.name: test for test in found}


def _in_file(path: Path) -> list[Marked]:
    module = ast.parse(path.read_bytes(), str(path))
    return _in_body(module.body, path.relative_to(TESTS.parent).as_posix(), _of_file(module))


def _in_body(body: list[ast.stmt], above: str, rows: frozenset[int]) -> list[Marked]:
    """Return the tests of a file or a class; ``rows`` are the marks that hold for all of it."""
    found: list[Marked] = []
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            name = f"{above}::{statement.name}"
            found += _in_body(statement.body, name, rows | _in_nodes(statement.decorator_list))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("test"):
            found.append(Marked(f"{above}::{statement.name}", rows | _in_nodes(statement.decorator_list)))
        elif isinstance(statement, ast.Assign):
            # A state machine of hypothesis: ``TestIt = pytest.mark.row(12)(Machine.TestCase)``.
            marked = rows | _in_nodes([statement])
            found += [Marked(f"{above}::{name}", marked) for name in _targets(statement) if name.startswith("Test")]
    return found


def _of_file(module: ast.Module) -> frozenset[int]:
    """Return the marks in ``pytestmark = …``, which hold for the whole file."""
    return _in_nodes([each for each in module.body if isinstance(each, ast.Assign) and "pytestmark" in _targets(each)])


def _targets(statement: ast.Assign) -> set[str]:
    return {target.id for target in statement.targets if isinstance(target, ast.Name)}


def _in_nodes(nodes: Sequence[ast.AST]) -> frozenset[int]:
    """Return the numbers of every ``pytest.mark.row(…)``, also of one parameter's ``marks=``."""
    calls = [call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call) and _is_row(call)]
    return frozenset(ast.literal_eval(argument) for call in calls for argument in call.args)


def _is_row(call: ast.Call) -> bool:
    function = call.func
    return isinstance(function, ast.Attribute) and function.attr == "row" and _is_mark(function.value)


def _is_mark(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "mark"
