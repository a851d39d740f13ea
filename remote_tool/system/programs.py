"""Programs of this machine that are asked something: each has a time limit, and none outlives its question."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# A process that waits for a disk in the kernel dies only when that has answered.
_LONGEST_END = 1.0


@dataclass(frozen=True)
class Answer:
    """What a program answered.

    Attributes:
        status: Its exit status; -N when signal N ended it.
        output: What it printed.
        errors: What it printed to stderr, where that was asked for.
    """

    status: int
    output: bytes = b""
    errors: bytes = b""


@dataclass(frozen=True)
class Question:
    """How to ask a program.

    Attributes:
        seconds: How long it may take.
        env: Its environment; None: ours.
        stdin: What it reads.
        output: The file that it prints to, instead of the answer.
        with_errors: Whether the answer has its stderr.
        most: How many bytes of output are enough; the program is then ended, which counts as status 0.
    """

    seconds: float
    env: Mapping[str, str] | None = None
    stdin: bytes = b""
    output: IO[bytes] | None = None
    with_errors: bool = False
    most: int | None = None


async def ask_program(question: Question, *command: str) -> Answer:
    """Run a program and all that it starts, in a session of its own that Ctrl-C does not reach.

    Raises:
        OSError: It cannot be started.
        TimeoutError: It took too long, and was ended.
    """
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe if question.stdin else nothing,
        stdout=pipe if question.output is None else question.output,
        stderr=pipe if question.with_errors else nothing,
        env=question.env,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(question.seconds):
            if question.most is not None:
                return await _first_bytes(process, question.most)
            output, errors = await process.communicate(question.stdin or None)
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
    """End a program that still runs, and read its pipes to their ends, so that they close."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(), _LONGEST_END)
