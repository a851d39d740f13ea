"""A step of ``prepare`` ends with its client, with every process that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from remote_tool.environments.step import Step, guarded
from tests.extended.agent.conftest import wait_until
from tests.processes import is_running

if TYPE_CHECKING:
    from pathlib import Path

# The first takes no notice of SIGTERM.
WORK = """
sh -c 'trap "" TERM; echo $$ >> pids; while :; do sleep 0.1; done' &
sh -c 'echo $$ >> pids; exec sleep 600'
"""


@pytest.mark.row(170)
@pytest.mark.parametrize("by", ["the end of its input", "a hang-up"])
def test_a_step_ends_with_its_client(tmp_path: Path, by: str) -> None:
    """A client that gives up has the SSH server send SIGHUP to the frame, then it closes its input."""
    frame = guarded(Step("work", "Working", WORK, 600), "scripts", {})
    began = tmp_path / "pids"
    with subprocess.Popen(
        ["/bin/sh", "-c", frame],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path)},
        start_new_session=True,
    ) as program:
        assert program.stdin is not None
        wait_until(lambda: began.exists() and began.read_text().count("\n") == 2, "the work runs")
        pids = [*map(int, began.read_text().split())]
        if by == "a hang-up":
            os.killpg(program.pid, signal.SIGHUP)
        program.stdin.close()
        try:
            wait_until(lambda: not any(map(is_running, pids)), "its processes are gone")
        finally:
            for pid in filter(is_running, pids):
                os.kill(pid, signal.SIGKILL)
