"""The real program in a process of its own, without the time that it takes to load.

Loading is most of a short command. So one process has loaded the program, also what a command loads when it needs it,
and waits; each command is a fork of it that has its own arguments, folder, variables and streams.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ROOT = Path(__file__).parents[1]


def _modules_below(*packages: str) -> Iterator[str]:
    for package in packages:
        for file in sorted((_ROOT / package).rglob("*.py")):
            yield ".".join(file.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")


# What commands load, at once or when they need it.
PROGRAM = (
    "asyncssh",
    "yaml",
    "remote_tool.cli.app",
    "remote_tool.workspace",
    *_modules_below(*(f"remote_tool/{each}" for each in ("cli/commands", "launchers", "transport", "workflows"))),
)
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload([*PROGRAM, __name__])
# What Python, its libraries, or coverage look at when they are loaded.
_READ_ONCE = (
    *("PYTHON", "LANG", "LC_", "LD_", "TZ", "COV"),
    *("TYPER_", "_TYPER_", "TERMINAL_WIDTH", "FORCE_COLOR", "PY_COLORS", "NO_COLOR", "GITHUB_ACTIONS"),
)


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_ONCE)}


_READ = {name: value for name, value in _read_once(os.environ).items() if not name.startswith("COV")}


def load_program() -> None:
    """Have it loaded, in the present folder and with the present variables, by a process that ends with this one."""
    forkserver.ensure_running()


def remote_tool(
    *arguments: str, cwd: Path, timeout: float = 300.0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, and to the end of its output; ``environment`` adds to the variables of the tests."""
    variables = {**os.environ, **(environment or {})}
    if _read_once(variables) == _READ:
        return _run_fork(arguments, cwd, timeout, variables)
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
    unread = set(output)
    while unread and (ready := unread.intersection(wait(unread, max(deadline - time.monotonic(), 0)))):
        for each in ready:
            part = os.read(each.fileno(), 1 << 16)
            output[each] += part
            if not part:
                unread.remove(each)
    program.join(max(deadline - time.monotonic(), 0))
    for read in output:
        read.close()
    if unread or program.exitcode is None:
        program.kill()
        program.join()
        raise subprocess.TimeoutExpired(arguments, timeout, *output.values())
    stdout, stderr = [text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in output.values()]
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
