"""When a command ends, every process that it started ends too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running
from tests.promises.conftest import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

# A plain child, one in a session of its own without output here, and one whose parent has ended.
LEAVES = """
cd {folder}
sleep 1000 & echo $! >> pids
setsid sleep 1000 >/dev/null 2>&1 & echo $! >> pids
(nohup sleep 1000 >/dev/null 2>&1 & echo $! >> pids)
exit 3
"""


@pytest.mark.row(16)
@pytest.mark.parametrize("words", [("run",), ("job-run", "--follow"), ("job-run", "--frozen", "--follow")])
def test_what_a_command_left_running_ends_with_it(desk: Desk, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert desk.tries(*words, "--cmd", LEAVES.format(folder=tmp_path)).returncode == 3
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    until(lambda: not any(is_running(pid) for pid in pids), "all processes have ended")


@pytest.mark.row(283)
def test_before_a_command_runs_again_nothing_of_its_last_attempt_is_left(desk: Desk) -> None:
    left = "trap '' TERM HUP; setsid sh -c 'echo $$ > left; exec sleep 1000' & until [ -s left ]; do sleep 0.05; done"
    again = "kill -0 $(cat left) 2>/dev/null && echo left; exit 0"
    command = f'if [ "$REMOTE_TOOL_ATTEMPT" = 1 ]; then {left}; exit 75; else {again}; fi'
    desk.does("job-run", "--retries", "1", "--follow", "--cmd", command)
    assert [line for line in desk.does("job-tail", "1").splitlines() if "remote-tool: " not in line] == []
