"""Servers that lack a tool that the scripts of a sync use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.transport.sync import server_script

if TYPE_CHECKING:
    import pytest


def rename(patch: pytest.MonkeyPatch, script: str, tool: str, other: str) -> None:
    """Have a script of a sync use another tool, or option, than on other servers."""
    original = server_script.script_text
    assert tool in original(script)

    def renamed(name: str) -> str:
        return original(name).replace(tool, other) if name == script else original(name)

    patch.setattr(server_script, "script_text", renamed)
