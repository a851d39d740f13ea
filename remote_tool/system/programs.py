"""Run programs of this machine with a time limit; no program outlives its call."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# A killed process that waits for a disk in the kernel ends only after the disk has answered.
_LONGEST_END = 1.0


@dataclass(frozen=True)
class ProgramResult:
    """The result of a program.

    Attributes:
        status: Its exit status; -N when signal N ended it.
        output: Its stdout.
        errors: Its stderr, if requested.
    """

    status: int
    output: bytes = b""
    errors: bytes = b""


async def run_program(
    *command: str,
    seconds: float,
    env: Mapping[str, str] | None = None,
    stdin: bytes | IO[bytes] = b"",
    output: IO[bytes] | None = None,
    with_errors: bool = False,
    max_output: int | None = None,
) -> ProgramResult:
    """Run a program and its children in their own session, which Ctrl-C does not reach.

    Args:
        command: The program and its arguments.
        seconds: Time limit.
        env: Its environment; None is ours.
        stdin: Its input, or the file with it.
        output: The file for its stdout, in place of the result.
        with_errors: Whether the result has its stderr.
        max_output: Bytes of output after which the program is ended; its status is 0 then.

    Raises:
        OSError: It cannot be started.
        TimeoutError: It took too long, and was ended.
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    source = stdin or null
    data = source if isinstance(source, bytes) else None
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe if isinstance(source, bytes) else source,
        stdout=pipe if output is None else output,
        stderr=pipe if with_errors else null,
        env=env,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            if max_output is not None:
                return await _first_bytes(process, max_output)
            out, err = await process.communicate(data)
    finally:
        await _end(process)
    return ProgramResult(process.returncode or 0, out or b"", err or b"")


async def _first_bytes(process: asyncio.subprocess.Process, limit: int) -> ProgramResult:
    output = b""
    assert process.stdout is not None
    while len(output) < limit and (data := await process.stdout.read(limit - len(output))):
        output += data
    return ProgramResult(0 if len(output) == limit else await process.wait(), output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a running program, and drain its pipes so that they close."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(), _LONGEST_END)
