"""The real program in a process of its own, without the time that it takes to load.

Loading is most of a short command. So one process has loaded the program and waits, and each command is a fork of it
that has its own arguments, folder, variables and streams.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["asyncssh", "yaml", "remote_tool.cli.app", "remote_tool.workspace", __name__])


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python and its libraries read once, when they are loaded."""
    return {name: value for name, value in environment.items() if name.startswith(("PYTHON", "LANG", "LC_", "COV"))}


_READ = _read_at_start(os.environ)


def remote_tool(
    *arguments: str, cwd: Path, timeout: float = 300.0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, and to the end of its output; ``environment`` adds to the variables of the tests."""
    variables = {**os.environ, **(environment or {})}
    if _read_at_start(variables) != _READ:
        return subprocess.run(
            [sys.executable, "-m", "remote_tool", *arguments],
            cwd=cwd,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env=variables,
        )
    return _run_fork(arguments, cwd, timeout, variables)


def _run_fork(
    arguments: tuple[str, ...], cwd: Path, timeout: float, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    pipes = [_FORKS.Pipe(duplex=False) for _ in ("stdout", "stderr")]
    program = _FORKS.Process(
        target=_be_program, args=(arguments, str(cwd), variables, *[write for _, write in pipes]), daemon=True
    )
    program.start()
    output = {read: b"" for read, _ in pipes}
    for _, write in pipes:
        write.close()
    deadline = time.monotonic() + timeout
    while unread := [read for read in output if not read.closed]:
        ready = wait(unread, max(deadline - time.monotonic(), 0))
        if not ready:
            program.kill()
            raise subprocess.TimeoutExpired(arguments, timeout, *output.values())
        for each in [read for read in unread if read in ready]:
            part = os.read(each.fileno(), 1 << 16)
            output[each] += part
            if not part:
                each.close()
    program.join(timeout)
    stdout, stderr = [text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in output.values()]
    assert program.exitcode is not None, f"still running: {arguments}"
    return subprocess.CompletedProcess(arguments, program.exitcode, stdout, stderr)


def _be_program(arguments: tuple[str, ...], folder: str, variables: dict[str, str], *streams: Connection) -> None:
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[1:] = arguments
    runpy.run_module("remote_tool", run_name="__main__", alter_sys=True)
