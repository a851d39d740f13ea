"""The walks of docs/architecture.md: each names functions that exist, and that a real command calls in this order."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import remote_tool as package
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from tests.sshd import TestServer

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
# Notes the first call of each function of the package, in the client and on servers, with a clock that both share.
NOTE_CALLS = """\
def _note_calls(log):
    import os, sys, threading, time
    seen = set()
    def note(frame, event, _argument):
        if event != "call":
            return
        _, found, module = frame.f_code.co_filename.rpartition("remote_tool/")
        function = f"{module}::{frame.f_code.co_name}"
        if not found or function in seen:
            return
        seen.add(function)
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{time.monotonic_ns()} {function}\\n".encode())
        os.close(file)
    threading.setprofile(note)
    sys.setprofile(note)
"""


def walk_of(command: str) -> list[str]:
    """Return the functions of a walk on the page, such as ``workflows/start/start.py::start_jobs``."""
    section = PAGE.read_text().partition(f"\n### {command}\n")[2].partition("\n#")[0]
    return re.findall(r"^\d+\. `([\w/.]+::\w+)`", section, re.MULTILINE)


def calls_of(root: Path, folder: Path, *words: str) -> list[str]:
    """Run the program, and return the functions that it and its servers call, by the moment of the first call."""
    copy, log = folder / "package" / "remote_tool", folder / "calls"
    shutil.copytree(Path(package.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    control = copy / "agent" / "run_control.py"
    start = 'if __name__ == "__main__":\n'
    text = control.read_text()
    assert start in text
    control.write_text(text.replace(start, f"{NOTE_CALLS}\n{start}    _note_calls({str(log)!r})\n"))
    program = f"{NOTE_CALLS}\n_note_calls({str(log)!r})\nfrom remote_tool.cli.app import main\nmain()\n"
    ran = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    rows = sorted(log.read_text().splitlines(), key=lambda row: int(row.split()[0]))
    return list(dict.fromkeys(row.split()[1] for row in rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("job-run", ("job-run", "--server", "first", "--cmd", "true")),
        ("rsync", ("rsync",)),
        ("helper-torch-launch", ("helper-torch-launch", "--cmd", "hello.py", "--follow")),
    ],
)
def test_a_walk_names_functions_in_the_order_of_their_calls(
    two_servers: tuple[TestServer, TestServer], tmp_path: Path, command: str, words: tuple[str, ...]
) -> None:
    root = make_project(tmp_path / "project", two_servers)
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    (root / "new.py").write_text("print('new')\n")
    walk, calls = walk_of(command), calls_of(root, tmp_path, *words)
    assert len(walk) >= 8
    assert [step for step in walk if step not in calls] == []
    assert walk == sorted(walk, key=calls.index)
