"""``setup`` and ``env`` of configs.yaml, as users have them: for all servers, and for one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.program import remote_tool
from tests.project import make_workspace_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHOW = 'echo "$WHO $RATE $ONLY $TOOL"'


@pytest.fixture
def configured(project: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that makes a checkout of the project with more in its configs.yaml."""

    def configure(*, first: dict[str, object] | None = None, **top: object) -> Path:
        values = yaml.safe_load((project / ".remote" / "configs.yaml").read_text())
        values["servers"]["first"] |= first or {}
        root = tmp_path / "project"
        make_workspace_id(root)
        (root / "tools.sh").write_text("export TOOL=$RATE-tool\n")
        (root / ".remote" / "configs.yaml").write_text(yaml.safe_dump(values | top))
        return root

    return configure


def test_a_server_has_its_own_and_the_option_wins(configured: Callable[..., Path]) -> None:
    root = configured(
        first={"env": {"WHO": "a $b 'c'", "ONLY": "1"}, "setup": "export TOOL=own"},
        env={"WHO": "all", "RATE": 0.1},
        setup="source tools.sh",
    )
    ran = remote_tool("run", "--cmd", SHOW, "--env", "RATE", "0.2", "--json", cwd=root)
    said = {each["server"]: each.get("stdout") for each in json.loads(ran.stdout)["servers"]}
    assert said["first"] == "a $b 'c' 0.2 1 own\n", ran.stderr
    # The file of the project is there with the next sync only.
    assert said["second"] == ""
    started = remote_tool("job-run", "--server", "second", "--cmd", SHOW, "--follow", cwd=root)
    assert started.stdout == "all 0.1  0.1-tool\n", started.stderr


def test_a_setup_that_fails_is_named_and_no_value_is_shown(configured: Callable[..., Path]) -> None:
    root = configured(env={"TOKEN": "canary-value"}, setup="source /opt/no/setvars.sh")
    started = remote_tool("-vv", "job-run", "--server", "first", "--cmd", "echo ran", "--follow", cwd=root)
    assert started.returncode == 1
    assert "failed, exit code 1, the command did not run: the setup script (setup: in configs.yaml)" in started.stderr
    assert "/opt/no/setvars.sh: No such file or directory" in started.stderr
    ran = remote_tool("-vv", "run", "--server", "first", "--cmd", "echo ran", cwd=root)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "the command did not run" in ran.stderr
    assert "canary-value" not in started.stderr + ran.stderr
