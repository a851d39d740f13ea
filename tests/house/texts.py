"""The texts that users read: documents, strings of the program, docstrings of the commands and of the Python API.

And those that only engineers read: the other docstrings of the package, and its comments.
"""

from __future__ import annotations

import ast
import re
import tokenize
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "remote_tool"
# docs/reference.md is made from the strings and docstrings of the commands.
DOCUMENTS = ("README.md", "CHANGELOG.md", "docs/*.md")
MADE = "reference.md"
# Docstrings here are help texts, or what an editor shows of the Python API. What the package itself gives out is added.
PUBLIC = ("*.py", "workspace/*.py", "config/model.py", "cli/commands/**/*.py")
# A string without a space is a key, a name or an option.
PHRASE = re.compile(r"\w\s+\w")
SHELL_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
VALUE = "{}"
# Names in a docstring or a comment: code, and the attributes and arguments that a docstring describes.
CODE = re.compile(r"``[^`]+``|^ {4,}\w+:(?= )", re.MULTILINE)
# A comment that allows a phrase quotes it.
ALLOWING = re.compile(r"# words \".*")

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


def engineers_texts(root: Path) -> Iterator[Text]:
    """All docstrings and comments of the package."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        every, _ = docstrings_of(ast.parse(path.read_text()))
        yield from (without_code(text_at(path, node)) for node in sorted(every, key=lambda node: node.lineno))
        yield from comments(path)


def text_at(path: Path, docstring: ast.expr) -> Text:
    """A docstring with its place."""
    return Text(path, docstring.lineno, docstring.end_lineno or docstring.lineno, str(ast.literal_eval(docstring)))


def comments(path: Path) -> Iterator[Text]:
    """The comments of a module; consecutive lines are one text."""
    block: list[Text] = []
    for line, column, comment in comment_tokens(path):
        text = Text(path, line, line, ALLOWING.sub("", comment).lstrip("# "))
        if block and (column or block[-1].line != line - 1):
            yield joined(block)
            block = []
        block.append(text)
    if block:
        yield joined(block)


def comment_tokens(path: Path) -> Iterator[tuple[int, bool, str]]:
    """Line, whether code precedes it, and text of each comment."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], bool(token.line[: token.start[1]].strip()), token.string


def joined(block: list[Text]) -> Text:
    """Lines of a comment as one text."""
    text = "\n".join(each.text for each in block)
    return without_code(Text(block[0].path, block[0].line, block[-1].line, text))


def without_code(text: Text) -> Text:
    """A text with a placeholder for each name of the code."""
    return text._replace(text=CODE.sub(VALUE, text.text))


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


def docstrings_of(tree: ast.Module) -> tuple[set[ast.expr], set[ast.expr]]:
    """All docstrings of a module, and those of its public names."""
    every: set[ast.expr] = set()
    public: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, Named | ast.Module) and ast.get_docstring(node) is not None:
            docstring = node.body[0].value  # type: ignore[attr-defined]  # it is an expression
            every.add(docstring)
            if isinstance(node, ast.Module) or not node.name.startswith("_"):
                public.add(docstring)
    return every, public
