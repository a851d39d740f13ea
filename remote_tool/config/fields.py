"""Read single values that several sections of configs.yaml have: texts, paths, words, variables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.protocol.marks import RESERVED_NAMES

if TYPE_CHECKING:
    from remote_tool.config.document import ConfigNode
    from remote_tool.config.forms import Validator


def text_of(values: dict[str, ConfigNode], key: str, form: Validator) -> str | None:
    """Return the text of a key; None without it, or when it is not valid."""
    return values[key].text(form) if key in values else None


def yes_or_no(values: dict[str, ConfigNode], key: str) -> bool | None:
    """Return ``true`` or ``false`` as a bool; None without the key."""
    text = text_of(values, key, forms.one_of(("true", "false")))
    return text == "true" if text else None


def local_path(values: dict[str, ConfigNode], key: str, root: Path, form: Validator = forms.LOCAL_PATH) -> Path | None:
    """Return a local path, absolute; relative ones start at the project."""
    text = text_of(values, key, form)
    if text is None:
        return None
    return Path.home() / text[2:] if text.startswith("~/") else root / text


def inside_project(values: dict[str, ConfigNode], key: str) -> str:
    """Return a path relative to the project; empty without the key."""
    return forms.within(text_of(values, key, forms.INSIDE) or "")


def workdir(values: dict[str, ConfigNode]) -> str | None:
    """Return the folder in which commands start, relative to the project; None without the key."""
    text = text_of(values, "workdir", forms.WORKDIR)
    return None if text is None else forms.within(text)


def words(values: dict[str, ConfigNode], key: str, form: Validator) -> tuple[str, ...] | None:
    """Return the words of a command; None without the key."""
    text = text_of(values, key, form)
    return tuple(shlex.split(text)) if text else None


def variables(values: dict[str, ConfigNode]) -> dict[str, str]:
    """Return the variables of ``env``; an empty value is allowed, a missing one is refused."""
    variables = {}
    for name, place in values["env"].pairs(are_secret=True) if "env" in values else ():
        if "=" in name:
            # What follows may be the value.
            values["env"].refuse(f"must be {{NAME: VALUE}}, found NAME=VALUE for {name.partition('=')[0]!r}")
        elif not forms.VARIABLE.accepts(name):
            place.refuse(f"must be {forms.VARIABLE.wanted}")
        elif name in RESERVED_NAMES:
            place.refuse("is set by remote-tool; choose another name")
        elif not place.is_null:
            variables[name] = place.text(forms.VALUE) or ""
    return variables
