"""Every key of configs.yaml that a message names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.artifacts import LIMIT_KEYS
from remote_tool.config.environment import INSTALLER_KEYS, KINDS, Environment
from remote_tool.config.keys import keys_of
from remote_tool.config.model import Config
from remote_tool.config.servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[3] / "remote_tool"
# What an f-string fills in, and shell: any name.
ANY = "\x00"
_DOTTED = re.compile(rf"(?<![\w./@-])(environment|servers|artifact_limit)((?:\.(?!ya?ml\b)[\w{ANY}]+)+)")
_SET = re.compile(r"\b([Ss]et|[Cc]hange|[Cc]orrect|[Cc]heck) ([a-z_]+)(?=: (?:of|in)\b| in \S*configs\.yaml)")
_OF = re.compile(r"\b([a-z_]+): (?:of|in|to) \S* ?(?:\.remote/)?configs\.yaml")


def texts_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines; no docstrings."""
    tree = ast.parse(file.read_text())
    pieces = {id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(each.value) if isinstance(each, ast.Constant) else ANY for each in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (pieces | said):
            yield node.lineno, node.value


def keys_in(text: str) -> list[str]:
    dotted = [found[1] + found[2] for found in _DOTTED.finditer(text)]
    return dotted + [found[2] for found in _SET.finditer(text)] + [found[1] for found in _OF.finditer(text)]


def exists(key: str) -> bool:
    first, *rest = key.replace(ANY, "*").split(".")
    if first == "servers":
        return len(rest) < 2 or exists_in_server(rest[1], rest[2:])
    if first == "environment":
        return exists_in_environment(rest)
    if first == "artifact_limit":
        return not rest or (len(rest) == 1 and rest[0] in LIMIT_KEYS)
    if key in {"from", "to"}:
        return True  # of a data set
    return first in {*keys_of(Config), *keys_of(Server)} and not rest


def exists_in_server(key: str, rest: list[str]) -> bool:
    return (
        exists_in_environment(rest) if key == "environment" else key in keys_of(Server) and (not rest or key == "env")
    )


def exists_in_environment(rest: list[str]) -> bool:
    levels = ({*KINDS, "*"}, set(keys_of(Environment)), set(INSTALLER_KEYS))
    return len(rest) <= len(levels) and all(name in level for name, level in zip(rest, levels, strict=False))


NAMED = [
    pytest.param(key, id=f"{file.relative_to(PACKAGE)}:{line}:{key.replace(ANY, '*')}")
    for file in sorted(PACKAGE.rglob("*.py"))
    for line, text in texts_of(file)
    for key in keys_in(text)
]


@pytest.mark.parametrize("key", NAMED)
def test_every_key_that_a_message_names_exists(key: str) -> None:
    assert exists(key)


def test_the_keys_of_messages_are_found() -> None:
    assert len(NAMED) > 8
    assert keys_in("check environment.installer, or try again") == ["environment.installer"]
    assert keys_in(f"Set servers.{ANY}.address in configs.yaml") == [f"servers.{ANY}.address"]
    assert keys_in("change python: in configs.yaml") == ["python", "python"]
    assert not exists("environment.installer")
    assert not exists("environment.channels")
    assert not exists(f"servers.{ANY}.adress")
    assert exists("environment.miniconda.installer.file")
