"""The folder .remote.example works as it is copied."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import Desk

if TYPE_CHECKING:
    from tests.sshd import TestServer

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def example(two_machines: dict[str, TestServer], tmp_path: Path) -> Desk:
    """The sample with the example's configuration, in which only servers, their keys, and the Python are others."""
    shutil.copytree(REPOSITORY / "sample", tmp_path / "sample")
    shutil.copytree(REPOSITORY / ".remote.example", tmp_path / "sample" / ".remote")
    file = tmp_path / "sample" / ".remote" / "configs.yaml"
    before, servers, rest = re.split(r"(?ms)^servers:\n(.*?)(?=^# Local folders)", file.read_text())
    for name, server in two_machines.items():
        mine = servers if name == "first" else servers[servers.index("  second:") :]
        mine = re.sub(r"hostname: .*", f"hostname: {server.address}", mine, count=1)
        if name == "first":
            mine = re.sub(r"username: .*", f"username: {server.username}", mine)
            mine = re.sub(r"port: .*", f"port: {server.port}", mine)
            servers = re.sub(r"private_key: .*", f"private_key: {server.key}", mine)
        else:
            reach = f"    username: {server.username}\n    port: {server.port}\n    private_key: {server.key}\n"
            servers = servers[: servers.index("  second:")] + mine.rstrip("\n") + f"\n{reach}\n"
    # A real installation takes its packages from the network.
    existing = f"environment: {{existing: {sys.prefix}}}\n"
    file.write_text(f"{before}{existing}servers:\n{servers}{rest}")
    return Desk(tmp_path / "sample", two_machines)


@pytest.mark.slow
def test_a_job_and_a_launch_run_with_the_example_as_it_is(example: Desk) -> None:
    example.does("prepare")
    example.does("job-run", "--server", "first", "--cmd", "python hello_world.py")
    example.waits_for(1, "running")
    example.does("job-kill", "1")
    launch = ("--nproc-per-node", "1", "--follow", "--cmd", "train_digits.py --epochs 1")
    example.does("helper-torch-launch", *launch)
    assert {job["state"] for job in example.jobs() if job["launch_id"]} == {"succeeded"}
