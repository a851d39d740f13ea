"""The sample trains, alone and with torchrun, and goes on where it stopped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[3] / "sample"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# On a busy machine, importing torch takes a minute.
pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the script alone."""
    shutil.copy(SAMPLE / "train_digits.py", tmp_path)
    return tmp_path


def run(project: Path, *words: str) -> list[str]:
    """Run a Python program to its end; return the lines it prints."""
    trained = subprocess.run(
        [sys.executable, *words],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **ONE_THREAD},
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    return trained.stdout.splitlines()


def accuracy(lines: list[str]) -> float:
    (found,) = re.findall(r"^accuracy (\d+\.\d) % on 360 held-out digits$", "\n".join(lines), re.MULTILINE)
    return float(found)


def epochs(lines: list[str]) -> list[int]:
    return [int(number) for number in re.findall(r"^epoch (\d+) loss", "\n".join(lines), re.MULTILINE)]


def test_alone_it_trains_goes_on_and_begins_anew(project: Path) -> None:
    first = run(project, "train_digits.py")
    assert first[0] == "rank 0 of 1 on cpu"
    assert epochs(first) == list(range(1, 21))
    assert accuracy(first) > 95
    again = run(project, "train_digits.py", "--epochs", "22")
    assert "resuming after epoch 20" in again
    assert epochs(again) == [21, 22]
    assert accuracy(again) > 95
    fresh = run(project, "train_digits.py", "--fresh", "--epochs", "1")
    assert "resuming" not in "\n".join(fresh)
    assert epochs(fresh) == [1]


def test_two_processes_train_together(project: Path) -> None:
    """One checkpoint, one line per epoch, whatever the number of processes."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    lines = run(project, *torchrun, "train_digits.py")
    # Two processes write to one pipe, so the end of a line may come after the next one's beginning.
    assert sorted(re.findall(r"rank \d of \d on cpu", "\n".join(lines))) == ["rank 0 of 2 on cpu", "rank 1 of 2 on cpu"]
    assert epochs(lines) == list(range(1, 21))
    assert accuracy(lines) > 95
    assert [path.name for path in (project / "checkpoints").iterdir()] == ["digits.pt"]
