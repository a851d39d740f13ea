"""Writes docs/api.md from the docstrings of public names: ``python -m remote_tool.workspace.reference``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import remote_tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILE = Path(__file__).parents[2] / "docs" / "api.md"
WIDTH = 120
# A longer signature has one line for each parameter.
LONGEST_SIGNATURE = 88
INTRODUCTION = """\
# Python API

This page has the public names of `remote_tool`, with their docstrings; `python -m remote_tool.workspace.reference`
writes it. [Python](guide/python.md) has examples.
"""
# The methods of the others are for the program itself.
WITH_METHODS = ("Workspace", "RunningJob", "Job", "JobState")
TITLES = {"Args": "Parameters", "Attributes": "", "Returns": "Returns", "Raises": "Raises"}


class Docstring(NamedTuple):
    """A docstring in Google style: its text, and the entries of each section."""

    text: str
    sections: dict[str, dict[str, str]]


def reference() -> str:
    """Return the page."""
    names = [name for name in remote_tool.__all__ if isinstance(getattr(remote_tool, name), type)]
    parts = [INTRODUCTION, *(_class(name, getattr(remote_tool, name)) for name in sorted(names, key=_order))]
    return "\n".join([*parts, "## `__version__`\n\nThe version of the package, a string.\n"])


def _order(name: str) -> tuple[bool, bool, str]:
    """Sort what a program begins with to the top."""
    return name != "Workspace", name != "RunningJob", name


def _class(name: str, each: type) -> str:
    text = _read(inspect.getdoc(each) or "").text
    parts = [f"## {name}\n", f"{text}\n"]
    if issubclass(each, Enum):
        parts.append("\n".join(f"- `{member.name}`: `{member.value!r}`" for member in each) + "\n")
    elif issubclass(each, Exception) or dataclasses.is_dataclass(each):
        parts.append(_entries(_fields(each)) + "\n")
    if name in WITH_METHODS:
        parts += [_member(name, member, value) for member, value in _members(each)]
    return "\n".join(parts)


def _fields(each: type) -> Iterator[tuple[str, str]]:
    """Yield what an object is made with, as it is declared, and what that means."""
    described: dict[str, str] = {}
    for base in reversed(each.__mro__):
        described |= _read(inspect.cleandoc(base.__doc__ or "")).sections.get("Attributes", {})
    for parameter in inspect.signature(each).parameters.values():
        plain, help_text = _unannotated(str(parameter.annotation))
        yield _declared(parameter, plain, each), described.get(parameter.name, help_text)


def _members(each: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties, in the order of the source, those of base classes of ours last."""
    seen = set()
    for base in each.__mro__:
        if not base.__module__.startswith(remote_tool.__name__):
            continue
        for name, value in vars(base).items():
            is_method = inspect.isfunction(value) or isinstance(value, classmethod | property)
            if is_method and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _member(owner: str, name: str, value: object) -> str:
    call = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    assert inspect.isfunction(call)
    signature = _returned(call) if isinstance(value, property) else _signature(name, call)
    docs = _read(inspect.getdoc(call) or "")
    parts = [f"### {owner}.{name}\n", f"```python\n{signature}\n```\n"]
    parts += [f"{docs.text}\n"] if docs.text else []
    for section, entries in docs.sections.items():
        parts += [f"{TITLES[section]}:\n", _entries((f"{key}", words) for key, words in entries.items()) + "\n"]
    return "\n".join(parts)


def _returned(call: object) -> str:
    name = getattr(call, "__name__", "")
    return f"{name}: {inspect.signature(call).return_annotation}"  # type: ignore[arg-type]


def _signature(name: str, call: object) -> str:
    """Return the parameters without self, one for each line if there are many."""
    signature = inspect.signature(call)  # type: ignore[arg-type]
    parameters: list[str] = []
    is_keyword = False
    for each in list(signature.parameters.values())[1:]:
        if each.kind is each.KEYWORD_ONLY and not is_keyword and not any(text.startswith("*") for text in parameters):
            parameters.append("*")
        is_keyword = each.kind is each.KEYWORD_ONLY
        parameters.append(_declared(each, str(each.annotation)))
    line = f"{name}({', '.join(parameters)}) -> {signature.return_annotation}"
    if len(line) <= LONGEST_SIGNATURE:
        return line
    inner = "".join(f"    {each},\n" for each in parameters)
    return f"{name}(\n{inner}) -> {signature.return_annotation}"


def _declared(parameter: inspect.Parameter, annotation: str, owner: type | None = None) -> str:
    """Return a parameter as its source has it."""
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    text = f"{stars}{parameter.name}: {annotation}"
    if parameter.default is parameter.empty:
        return text
    fields = {each.name: each for each in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    made = fields[parameter.name].default_factory if parameter.name in fields else dataclasses.MISSING
    return f"{text} = {_value(parameter.default if made is dataclasses.MISSING else made())}"


def _value(value: object) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return value.__name__ if inspect.isfunction(value) else repr(value)


def _unannotated(annotation: str) -> tuple[str, str]:
    """Return the type that an annotation declares, and the help of its option."""
    tree = ast.parse(annotation, mode="eval").body
    if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Name):
        return annotation, ""
    if tree.value.id == "InitVar":
        return ast.unparse(tree.slice), ""
    if tree.value.id != "Annotated" or not isinstance(tree.slice, ast.Tuple):
        return annotation, ""
    plain, option = tree.slice.elts
    texts = (
        [part.value for part in option.args if isinstance(part, ast.Constant)] if isinstance(option, ast.Call) else []
    )
    return ast.unparse(plain), str(texts[-1]) if texts else ""


def _entries(entries: Iterable[tuple[str, str]]) -> str:
    lines = (f"- `{key}`: {words}" if words else f"- `{key}`" for key, words in entries)
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def _read(docstring: str) -> Docstring:
    """Read a docstring, with its markup as Markdown."""
    text = re.sub(r":\w+:`~?(?:remote_tool\.)?([^`]+)`", r"`\1`", docstring).replace("``", "`")
    # What it leads to is on this page, in the same list.
    text = re.sub(r"; see `\w+` for [^.]+\.", ".", text)
    before, *rest = re.split(rf"^({'|'.join(TITLES)}):\n", text, flags=re.MULTILINE)
    sections = {title: _section(body) for title, body in zip(rest[::2], rest[1::2], strict=True)}
    return Docstring(before.strip(), sections)


def _section(body: str) -> dict[str, str]:
    """Return the entries of a section; a line that is indented further continues the one above it."""
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?! )", textwrap.dedent(body).strip()):
        name, _, words = re.sub(r"\s+", " ", entry).partition(": ")
        entries[name] = words
    return entries


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
