"""Programs of this machine answer within a bound, and end with their question."""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool.system.programs import ProgramResult, run_program
from tests.processes import is_running

if TYPE_CHECKING:
    from pathlib import Path

SLEEP = "sleep 60 & echo $!; wait"


async def test_a_program_answers_with_its_status_output_and_errors() -> None:
    script = "cat; echo $NAME; echo bad >&2; exit 3"
    result = await run_program("/bin/sh", "-c", script, seconds=30, env={"NAME": "x"}, stdin=b"read", with_errors=True)
    assert result == ProgramResult(3, b"readx\n", b"bad\n")
    with tempfile.TemporaryFile() as file:
        assert await run_program("/bin/sh", "-c", "echo there", seconds=30, output=file) == ProgramResult(0)
        file.seek(0)
        assert file.read() == b"there\n"


async def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run_program("/nonexistent", seconds=30)


async def test_a_program_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    with (tmp_path / "pid").open("wb") as file, pytest.raises(TimeoutError):
        await run_program("/bin/sh", "-c", SLEEP, seconds=2, output=file)
    assert time.monotonic() - began < 30
    pid = int((tmp_path / "pid").read_text())
    while is_running(pid):
        assert time.monotonic() - began < 50
        await asyncio.sleep(0.02)


async def test_a_program_ends_when_its_first_bytes_are_enough() -> None:
    assert await run_program("/bin/sh", "-c", "yes; exit 1", seconds=30, max_output=2) == ProgramResult(0, b"y\n")
    assert await run_program("/bin/sh", "-c", "echo a; exit 1", seconds=30, max_output=9) == ProgramResult(1, b"a\n")
