"""The texts that users read: documents, strings of the program, docstrings of the commands and of the Python API."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "remote_tool"
# docs/reference.md is made from the strings and docstrings of the commands.
DOCUMENTS = ("README.md", "CHANGELOG.md", "docs/*.md")
MADE = "reference.md"
# Docstrings here are help texts, or what an editor shows of the Python API. What the package itself gives out is added.
PUBLIC = ("*.py", "workspace/*.py", "config/model.py", "cli/commands/*.py")
# A string without a space is a key, a name or an option.
PHRASE = re.compile(r"\w\s+\w")
SHELL_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
VALUE = "{}"

Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Text(NamedTuple):
    """A text, and which lines of a file it has."""

    path: Path
    line: int
    last_line: int
    text: str


def user_texts(root: Path) -> Iterator[Text]:
    """Everything that users read."""
    for pattern in DOCUMENTS:
        for path in sorted(root.glob(pattern)):
            if path.name != MADE:
                yield from paragraphs(path)
    package = root / PACKAGE
    public = public_modules(package)
    for path in sorted(package.rglob("*.py")):
        yield from strings(path, with_docstrings=path in public)


def public_modules(package: Path) -> set[Path]:
    """The modules whose docstrings users read."""
    given_out = re.findall(rf'"{PACKAGE}\.([\w.]+)"', (package / "__init__.py").read_text())
    patterns = (*PUBLIC, *(f"{module.replace('.', '/')}.py" for module in given_out))
    return {path for pattern in patterns for path in package.glob(pattern)}


def paragraphs(path: Path) -> Iterator[Text]:
    """The items and paragraphs of a document."""
    first = 1
    part: list[str] = []
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if part and (not line.strip() or re.match(r"\s*(?:- |\d+\. |\|)", line)):
            yield Text(path, first, number - 1, "\n".join([*part, ""]))
            part = []
        if line.strip():
            first = first if part else number
            part.append(line)


def strings(path: Path, *, with_docstrings: bool) -> Iterator[Text]:
    """The phrases among the strings of a module."""
    tree = ast.parse(path.read_text())
    every, public = docstrings_of(tree)
    for node in parts_of(tree):
        text = SHELL_COMMENT.sub("", text_of(node))
        is_read = node not in every or (with_docstrings and node in public)
        if is_read and PHRASE.search(text):
            yield Text(path, node.lineno, node.end_lineno or node.lineno, text)


def parts_of(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """The strings below a node; one with values in it is a single text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield child
            for value in child.values:
                if isinstance(value, ast.FormattedValue):
                    yield from parts_of(value)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child
        else:
            yield from parts_of(child)


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """The text of a string, with a placeholder for each value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(text_of(each) if isinstance(each, ast.Constant) else VALUE for each in node.values)


def docstrings_of(tree: ast.Module) -> tuple[set[ast.AST], set[ast.AST]]:
    """All docstrings of a module, and those of its public names."""
    every: set[ast.AST] = set()
    public: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, Named | ast.Module) and ast.get_docstring(node) is not None:
            docstring = node.body[0].value  # type: ignore[attr-defined]  # it is an expression
            every.add(docstring)
            if isinstance(node, ast.Module) or not node.name.startswith("_"):
                public.add(docstring)
    return every, public
