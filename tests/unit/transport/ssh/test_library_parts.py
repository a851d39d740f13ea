"""What we use of asyncssh without its promise is there: a release that renames it fails here, by name, at import."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import asyncssh
import asyncssh.config
import asyncssh.connection
import pytest

import remote_tool

PACKAGE = Path(remote_tool.__file__).parent
LIBRARY = vars(asyncssh) | vars(asyncssh.config)
# Methods that we replace or whose arguments are not documented.
UNDOCUMENTED = {
    asyncssh.config.SSHClientConfig: {
        "load": ["last_config", "config_paths", "reload", "canonical", "final", "args"],
        "get": ["option", "default"],
        "has_match_final": [],
    },
    asyncssh.SSHClientConnection: {"send_packet": ["pkttype", "args", "handler"], "get_server_auth_methods": []},
}


def private_parts(source: str) -> set[tuple[str, str]]:
    """Return each class of the library and the name of a part of it that begins with an underscore."""
    tree = ast.parse(source)
    found = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and _is_private(node.attr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).removeprefix("asyncssh.") for base in node.bases]
            targets = [target for each in node.body if isinstance(each, ast.Assign) for target in each.targets]
            names = [target.id for target in targets if isinstance(target, ast.Name) and _is_private(target.id)]
            found |= {(base, name) for base in bases for name in names}
    return {(owner, name) for owner, name in found if owner in LIBRARY}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


USED = sorted(
    {
        part
        for file in PACKAGE.rglob("*.py")
        if "asyncssh" in (source := file.read_text(encoding="utf-8"))
        for part in private_parts(source)
    }
)


@pytest.mark.parametrize(("owner", "name"), USED, ids=".".join)
def test_a_private_part_of_the_library_is_there(owner: str, name: str) -> None:
    assert hasattr(LIBRARY[owner], name), f"asyncssh {asyncssh.__version__} has no {owner}.{name}"


def test_the_private_parts_are_found() -> None:
    """Those that are named and those that a class of ours replaces; a renamed one is not there."""
    assert ("SSHClientConfig", "_set_string") in USED
    assert ("SSHClientConfig", "_handlers") in USED
    assert ("SSHClientConfig", "_percent_expand") in USED
    assert private_parts("class Ours(SSHClientConfig):\n    _gone = SSHClientConfig._renamed\n") == {
        ("SSHClientConfig", "_gone"),
        ("SSHClientConfig", "_renamed"),
    }


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in UNDOCUMENTED.items() for name in names], ids=str
)
def test_an_undocumented_method_takes_what_we_give(owner: type, name: str) -> None:
    taken = [parameter for parameter in inspect.signature(getattr(owner, name)).parameters if parameter != "self"]
    assert taken == UNDOCUMENTED[owner][name]


def test_no_other_value_of_the_library_is_looked_into() -> None:
    """A connection or a key in a variable has no class that could be looked up: nothing private of these is used."""
    files = [
        file
        for file in (PACKAGE / "transport" / "ssh").rglob("*.py")
        if "transport.ssh.library import" in file.read_text(encoding="utf-8")
    ]
    owners = {
        ast.unparse(node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and _is_private(node.attr)
    }
    assert {owner for owner in owners if owner != "self" and not owner.startswith("self._")} == {"SSHClientConfig"}
