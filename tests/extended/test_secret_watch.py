"""The watch over secrets sees what it is there for: each of these fails a test."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import JobError
from tests.secret_watch import hear, watching

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hf_kLmNoPqRsTuVwX"
FILES = {"record": ".remote/jobs/1/job.yaml", "log": ".remote/logs/x.log", "record on a server": "s/.jobs/1/a.json"}


@pytest.fixture(autouse=True)
def _secrets_stay_hidden() -> None:
    """Here they do not: these tests plant some, and watch for themselves."""


def program(folder: Path, *words: str, prints: str = "") -> None:
    """Run what looks like our program, and prints what it is told."""
    (folder / "remote_tool").write_text(f"print({prints!r})")
    subprocess.run([sys.executable, "remote_tool", *words], cwd=folder, check=True, capture_output=True)


def plant(where: str, folder: Path) -> None:
    """Have the secret where it must not be."""
    if where in FILES:
        (folder / FILES[where]).parent.mkdir(parents=True)
        (folder / FILES[where]).write_text(f'{{"reason": "{SECRET}"}}\n')
    if where == "password":
        (folder / ".remote").mkdir()
        (folder / ".remote" / "configs.yaml").write_text(f"servers:\n  a:\n    password: {SECRET}\n")
        program(folder, "prepare", prints=SECRET)
        return
    program(folder, "job-run", "--env", "TOKEN", SECRET, prints=SECRET if where == "output" else "")
    if where == "terminal":
        hear(["job-list"], SECRET.encode())
    if where == "error":
        JobError(f"sh: {SECRET}: not found")


@pytest.mark.row(111)
@pytest.mark.parametrize("where", ["output", "terminal", "error", "password", *FILES])
def test_a_secret_in_what_is_ours_fails_a_test(where: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="hf_k… is in"), watching(lambda: [tmp_path]):
        plant(where, tmp_path)


def test_what_a_job_prints_and_what_the_user_typed_fail_no_test(tmp_path: Path) -> None:
    with watching(lambda: [tmp_path]) as watch:
        program(tmp_path, "run", "--cmd", "env", "--env", "TOKEN", SECRET, prints=SECRET)
        job = tmp_path / ".remote" / "jobs" / "1"
        job.mkdir(parents=True)
        (job / "job.out").write_text(SECRET)
        (job / "job.yaml").write_text(f'command: "echo {SECRET}"\n')
        program(tmp_path, "job-run", "--env", "A", "something", "--cmd", "echo something", prints="something")
    assert list(watch.secrets) == [SECRET]
