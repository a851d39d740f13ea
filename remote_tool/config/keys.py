"""Declares keys of configs.yaml on the fields that they fill.

A declaration has all that is particular to a key: its name and type, its reader, and its row in docs/configuration.md,
which ``make reference`` writes. Keys are read, and listed in messages, in the order of their declarations::

    retries: int = field(default=0, metadata=key(text(forms.RETRIES, int), "none", "How many times …"))

Metadata of fields hold them, and not ``Annotated``: type checkers check the arguments, and no annotation has to be
evaluated when a file is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from _typeshed import DataclassInstance

    from remote_tool.config.document import ConfigNode

    Reader = Callable[[ConfigNode, "ProjectParts"], object]

_KEY = "key"


@dataclass(frozen=True)
class ProjectParts:
    """The parts of a project on which values of keys depend.

    Attributes:
        root: The project folder, absolute; relative paths start there.
        name: The project's folder on each server.
        servers: The names of the configured servers.
    """

    root: Path
    name: str = ""
    servers: Collection[str] = ()

    def local_path(self, text: str) -> Path:
        """Return a local path, absolute."""
        return Path.home() / text[2:] if text.startswith("~/") else self.root / text


@dataclass(frozen=True)
class Key:
    """A key of a mapping in configs.yaml.

    Attributes:
        read: Returns the value, or None for the default of the field; problems are added to the node. A key without a
            reader is read by hand, before the others.
        default: The default, as Markdown.
        help: The description, as Markdown.
        fills: The field and its attribute, such as ``local.exclude``, for a key that is declared as a class variable;
            empty: the field that declares it.
    """

    read: Reader | None
    default: str
    help: str
    fills: str = ""

    def row(self, name: str) -> str:
        """Return its line of a table in docs/configuration.md."""
        return f"| `{name}` | {self.default} | {self.help} |\n".replace("|  |", "| |")


def key(read: Reader | None, default: str, help: str) -> dict[str, Key]:  # noqa: A002 - the usual word for it
    """Return the metadata of a field that is a key; see :class:`Key`."""
    return {_KEY: Key(read, default, help)}


@cache
def keys_of(kind: type[DataclassInstance]) -> Mapping[str, Key]:
    """Return the keys of a dataclass by name, in the order of their declarations."""
    declared = {name: each.metadata.get(_KEY, each.default) for name, each in kind.__dataclass_fields__.items()}
    return {name: found for name, found in declared.items() if isinstance(found, Key)}


def read_keys(kind: type[DataclassInstance], values: Mapping[str, ConfigNode], project: ProjectParts) -> dict[str, Any]:
    """Return the values of the keys of a dataclass by field; parts of a field are a dictionary by attribute."""
    filled: dict[str, Any] = {}
    for name, declared in keys_of(kind).items():
        value = declared.read(values[name], project) if declared.read and name in values else None
        if value is not None:
            field, _, attribute = (declared.fills or name).partition(".")
            if attribute:
                filled.setdefault(field, {})[attribute] = value
            else:
                filled[field] = value
    return filled
