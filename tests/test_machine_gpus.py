"""Whatever GPUs this machine has, the servers of tests have those that tests give them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tests.machine_gpus import without_gpus
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer


def test_a_path_leads_to_all_programs_but_nvidia_smi(tmp_path: Path) -> None:
    machine = tmp_path / "bin"
    put_nvidia_smi(machine, gpu_line(0))
    (machine / "other").symlink_to("/bin/sh")
    path = f"{machine}:/bin"
    assert shutil.which("nvidia-smi", path=path) is not None
    hidden = without_gpus(path)
    assert shutil.which("nvidia-smi", path=hidden) is None
    assert shutil.which("other", path=hidden) is not None
    assert hidden == without_gpus(path)
    assert hidden.endswith(":/bin")


def test_neither_tests_nor_their_servers_see_the_nvidia_smi_of_the_machine(two_servers: tuple[TestServer, ...]) -> None:
    assert shutil.which("nvidia-smi", path=os.environ["PATH"]) is None
    (variables,) = [server.configuration()["SetEnv"] for server in two_servers[:1]]
    (path,) = [each.partition("=")[2] for each in variables.split() if each.startswith("PATH=")]
    assert shutil.which("nvidia-smi", path=path) is None
