"""Run programs of this machine with a time limit; none outlives its call."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# A process waiting for a disk in the kernel dies only after the disk has answered.
_LONGEST_END = 1.0


@dataclass(frozen=True)
class Answer:
    """The result of a program.

    Attributes:
        status: Its exit status; -N when signal N ended it.
        output: Its stdout.
        errors: Its stderr, if requested.
    """

    status: int
    output: bytes = b""
    errors: bytes = b""


@dataclass(frozen=True)
class Question:
    """How to run a program.

    Attributes:
        seconds: Time limit.
        env: Its environment; None: ours.
        stdin: Its input, or the file with it.
        output: The file for its stdout, in place of the answer.
        with_errors: Whether the answer has its stderr.
        most: Bytes of output after which the program is ended, which counts as status 0.
    """

    seconds: float
    env: Mapping[str, str] | None = None
    stdin: bytes | IO[bytes] = b""
    output: IO[bytes] | None = None
    with_errors: bool = False
    most: int | None = None


async def ask_program(question: Question, *command: str) -> Answer:
    """Run a program and its children in their own session, which Ctrl-C does not reach.

    Raises:
        OSError: It cannot be started.
        TimeoutError: It took too long, and was ended.
    """
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    given = question.stdin or nothing
    text = given if isinstance(given, bytes) else None
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe if isinstance(given, bytes) else given,
        stdout=pipe if question.output is None else question.output,
        stderr=pipe if question.with_errors else nothing,
        env=question.env,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(question.seconds):
            if question.most is not None:
                return await _first_bytes(process, question.most)
            output, errors = await process.communicate(text)
    finally:
        await _end(process)
    return Answer(process.returncode or 0, output or b"", errors or b"")


async def _first_bytes(process: asyncio.subprocess.Process, most: int) -> Answer:
    output = b""
    assert process.stdout is not None
    while len(output) < most and (data := await process.stdout.read(most - len(output))):
        output += data
    return Answer(0 if len(output) == most else await process.wait(), output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a running program, and drain its pipes so that they close."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(), _LONGEST_END)
