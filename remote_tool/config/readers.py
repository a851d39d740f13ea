"""Readers of values that several keys of configs.yaml have: texts, lists, paths, variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.protocol.marks import RESERVED_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import StrEnum
    from pathlib import Path

    from remote_tool.config.document import ConfigNode
    from remote_tool.config.forms import Validator
    from remote_tool.config.keys import ProjectParts, Reader


def text(form: Validator, convert: Callable[[str], object] = str) -> Reader:
    """Return the reader of a text, or of the value that it stands for."""

    def read(place: ConfigNode, _project: ProjectParts) -> object:
        found = place.text(form)
        return None if found is None else convert(found)

    return read


def texts(form: Validator, expected: str, *, or_one: bool = False) -> Reader:
    """Return the reader of a list of texts; with ``or_one``, a single one needs no list."""

    def read(place: ConfigNode, _project: ProjectParts) -> tuple[str, ...]:
        items = [place] if or_one and not place.is_list else place.items(expected)
        return tuple(found for each in items if (found := each.text(form)) is not None)

    return read


def choice(kind: type[StrEnum]) -> Reader:
    """Return the reader of a word of an enumeration."""
    return text(forms.one_of(tuple(kind)), kind)


def local_path(form: Validator = forms.LOCAL_PATH) -> Reader:
    """Return the reader of a local path, absolute; relative ones start at the project."""

    def read(place: ConfigNode, project: ProjectParts) -> Path | None:
        found = place.text(form)
        return None if found is None else project.local_path(found)

    return read


def unused(form: Validator) -> Reader:
    """Return the reader of a text that is checked and not used."""
    return text(form, lambda _text: None)


script = text(forms.SCRIPT)
yes_or_no = text(forms.one_of(("true", "false")), lambda found: found == "true")
inside_project = text(forms.INSIDE, forms.within)
# 0 turns a limit off, which is the default.
time_limit = text(forms.DURATION, lambda found: forms.read_duration(found) or None)


def text_of(values: Mapping[str, ConfigNode], key: str, form: Validator) -> str | None:
    """Return the text of a key; None without it, or when it is not valid."""
    return values[key].text(form) if key in values else None


def variables(place: ConfigNode, _project: ProjectParts) -> dict[str, str]:
    """Read variables by name; an empty value is allowed, a missing one is refused."""
    variables = {}
    for name, found in place.pairs(are_secret=True):
        if "=" in name:
            # What follows may be the value.
            place.refuse(f"must be {{NAME: VALUE}}, found NAME=VALUE for {name.partition('=')[0]!r}")
        elif not forms.VARIABLE.accepts(name):
            found.refuse(f"must be {forms.VARIABLE.expected}")
        elif name in RESERVED_NAMES:
            found.refuse("is set by remote-tool; choose another name")
        elif not found.is_null:
            variables[name] = found.text(forms.VALUE) or ""
    return variables


def status_patterns(place: ConfigNode, _project: ProjectParts) -> dict[str, str]:
    """Read regular expressions with one group, by name."""
    patterns = {}
    for name, found in place.pairs():
        if not forms.STATUS_NAME.accepts(name):
            found.refuse(f"the name must be {forms.STATUS_NAME.expected}")
            continue
        pattern = found.text(forms.PATTERN)
        if pattern is not None and (problem := _pattern_problem(pattern)):
            found.refuse(f"must be a regular expression with one group, such as 'accuracy ([0-9.]+)'; {problem}")
        elif pattern is not None:
            patterns[name] = pattern
    return patterns


def _pattern_problem(text: str) -> str:
    """Return what is wrong with a regular expression; empty if valid."""
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return "" if groups == 1 else f"this one has {groups} groups"
