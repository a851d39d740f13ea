"""Runs many command lines of the program side by side; each is forked from one process that has it all imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.program import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it showed."""

    status: int
    out: str
    err: str


def run_at_once(
    commands: Mapping[str, Sequence[str]], folders: Mapping[str, Path], settings: Mapping[str, float], *, within: float
) -> dict[str, Ran]:
    """Run each command in its folder, all of them at once.

    Args:
        commands: The arguments of each, by a name.
        folders: Where each runs, by its name.
        settings: Other values for constants, as ``module:NAME``.
        within: Seconds after which those that have not ended are killed, with status -9.
    """
    wanted = {
        "commands": {name: [str(folders[name]), *arguments] for name, arguments in commands.items()},
        "settings": dict(settings),
        "within": int(within),
    }
    answer = subprocess.run(
        [sys.executable, "-m", "tests.extended.sweeps.commands_at_once"],
        input=json.dumps(wanted),
        check=True,
        capture_output=True,
        text=True,
        timeout=within + 30,
        cwd=Path(__file__).parents[3],
    )
    statuses: dict[str, int] = json.loads(answer.stdout)
    return {
        name: Ran(
            status, *((folders[name] / ".remote" / stream).read_text(errors="replace") for stream in ("out", "err"))
        )
        for name, status in statuses.items()
    }


def main() -> None:
    """Run what stdin asks for, and print the statuses."""
    wanted = json.load(sys.stdin)
    for module in PROGRAM:
        import_module(module)
    for place, value in wanted["settings"].items():
        module, _, name = place.partition(":")
        assert hasattr(sys.modules[module], name)
        setattr(sys.modules[module], name, value)
    children = {name: _fork(folder, words, wanted["within"]) for name, (folder, *words) in wanted["commands"].items()}
    ended = {name: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for name, child in children.items()}
    print(json.dumps(ended))  # noqa: T201


def _fork(folder: str, words: list[str], within: int) -> int:
    child = os.fork()
    if child:
        return child
    status: Any = 70
    try:
        from remote_tool.cli import app  # noqa: PLC0415

        os.chdir(folder)
        for descriptor, stream in enumerate((os.devnull, ".remote/out", ".remote/err")):
            os.dup2(os.open(stream, os.O_RDWR | os.O_CREAT, 0o600), descriptor)
        _kill_after(within)
        sys.argv = ["remote-tool", *words]
        app.main()
    except SystemExit as left:
        status = left.code
    except BaseException:  # noqa: BLE001 - shown as Python would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


def _kill_after(seconds: int) -> None:
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


if __name__ == "__main__":
    main()
