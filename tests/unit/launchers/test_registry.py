"""Every launcher of the registry can be loaded."""

from __future__ import annotations

import pytest

from remote_tool.launchers.plan import Launcher
from remote_tool.launchers.registry import LAUNCHERS


@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_name_stands_for_a_launcher(name: str) -> None:
    assert callable(Launcher.named(name).plan)
