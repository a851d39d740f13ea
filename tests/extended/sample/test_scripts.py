"""The other scripts of the sample: one to follow and stop, one that shows the Python API."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project

if TYPE_CHECKING:
    from tests.conftest import MakeServer

SAMPLE = Path(__file__).parents[3] / "sample"


def test_hello_world_prints_from_where_it_runs_and_ends_on_sigterm() -> None:
    with subprocess.Popen(
        [sys.executable, str(SAMPLE / "hello_world.py")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "REMOTE_TOOL_SERVER": "gpu1"},
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "hello world 0 from gpu1\n"
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == -signal.SIGTERM


@pytest.mark.slow
def test_the_api_sample_prepares_a_server_follows_a_job_and_stops_another(
    make_server: MakeServer, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project", [make_server("gpu1")])
    for name in ("api_sample.py", "hello_world.py"):
        (project / name).write_text((SAMPLE / name).read_text())
    ran = subprocess.run(
        [sys.executable, "api_sample.py"],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    said, ended, stopped = ran.stdout.splitlines()
    assert said == "gpu1 says 42"
    assert re.fullmatch(r"job \d+ succeeded", ended)
    assert stopped == "stopped: True"
