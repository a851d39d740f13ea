"""Whatever GPUs this machine has, the servers of tests have those that tests give them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.machine_gpus import put_no_gpus, without_gpus
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_server_has_no_gpus_before_a_test_gives_it_some(tmp_path: Path) -> None:
    machine = tmp_path / "bin"
    put_nvidia_smi(machine, gpu_line(0))
    put_no_gpus(tmp_path / "programs", f"{tmp_path}/programs:{machine}")
    said = subprocess.run([tmp_path / "programs" / "nvidia-smi"], check=False, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (6, "No devices were found\n")
    put_no_gpus(tmp_path / "others", f"{tmp_path}/others:/nowhere")
    assert not (tmp_path / "others").exists()


def test_tests_do_not_see_the_nvidia_smi_of_the_machine() -> None:
    assert shutil.which("nvidia-smi") is None
