"""tools/need, on a machine where it may install nothing: it says what is missing, and goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NEED = Path(__file__).parents[2] / "tools" / "need"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH without apt-get, where a program called ``there`` is."""
    (tmp_path / "there").symlink_to("/bin/sh")
    identity = shutil.which("id")
    assert identity is not None
    (tmp_path / "id").symlink_to(identity)
    return tmp_path


def need(programs: Path, *words: str) -> tuple[int, str]:
    answer = subprocess.run(
        ["/bin/sh", str(NEED), *words], check=False, capture_output=True, text=True, env={"PATH": str(programs)}
    )
    assert answer.stderr == ""
    return answer.returncode, answer.stdout


def test_what_is_there_is_not_worth_a_line(programs: Path) -> None:
    assert need(programs, "there=its-package") == (0, "")


def test_what_is_missing_is_named_with_the_command_and_the_work_goes_on(programs: Path) -> None:
    said = "to do all of it, this is missing: sudo apt-get install rsync python3-venv\n"
    assert need(programs, "there=its-package", "no-such-program=rsync", "python3-venv") == (0, said)


def test_what_nothing_goes_without_is_a_failure(programs: Path) -> None:
    status, said = need(programs, "--strict", "python3-venv")
    assert status == 1
    assert "python3-venv" in said
