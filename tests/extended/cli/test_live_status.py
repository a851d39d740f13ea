"""The line at the bottom, on real terminals."""

from __future__ import annotations

import fcntl
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.program import remote_tool
from tests.project import start
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sshd import TestServer

REPOSITORY = Path(__file__).parents[3]
TRAIN = """
import os, sys, time
sys.stdout.reconfigure(line_buffering=True)
for step in range(1, 5):
    print(f"step {step}/4 loss {1 / step:.3f} \\u6f22\\u5b57")
while not os.path.exists("go"):
    time.sleep(0.05)
"""
# What a follower does, without a server: chunks of a job, and the line.
SHOW = """
import sys, time
from remote_tool.cli.following import Output
from remote_tool.cli.status_line import LiveStatus
from remote_tool.jobs.job import Job, JobState
from remote_tool.workflows.jobs.follow import Chunk
job = Job(1, "id", "gpu1", "train", JobState.RUNNING)
output = Output()
with LiveStatus({"acc": "acc ([0-9.]+)"}) as live:
    def show(data, stream="out"):
        chunk = Chunk(job, stream, data, "")
        output.show(chunk)
        live.note(chunk)
    for number in range(60):
        show(b"line %d\\n" % number)
    show("step 7/9 loss 0.5 acc 97.5 \\u6f22\\u5b57\\n".encode())
    show(b"\\r 10%|#", "err")
    time.sleep(0.4)
    show(b"\\r 20%|##", "err")
    sys.stdin.readline()
    show(b"\\nstep 8/9 after\\n")
    sys.stdin.readline()
output.close()
print("the end")
"""


@pytest.mark.slow
def test_following_on_a_terminal_shows_how_far_it_is_and_leaves_nothing(
    project: Path, servers: tuple[TestServer, TestServer]
) -> None:
    (project / "train.py").write_text(TRAIN)
    job = start(project, f"{sys.executable} train.py")
    with Terminal("job-tail", "--job", job.id, cwd=project) as terminal:
        terminal.until("step 4/4  loss 0.250")
        (servers[0].home / "project" / "go").touch()
        assert terminal.end() == 0
    raw = terminal.raw.decode()
    assert "\x1b[1;39r" in raw
    assert raw.rindex("\x1b[r\x1b[40;1H\x1b[0m\x1b[2K\x1b8") > raw.rindex("\x1b[1;39r")
    assert [f"step {step}/4 loss {1 / step:.3f} \u6f22\u5b57\r\n" in raw for step in range(1, 5)] == [True] * 4
    piped = remote_tool("job-tail", "--job", job.id, cwd=project)
    assert "\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize("missing", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_that_cannot_hold_a_line_gets_none(project: Path, missing: dict[str, str]) -> None:
    job = start(project, "echo step 1/2 loss 3; sleep 0.5")
    with Terminal("job-tail", "--job", job.id, cwd=project, environment=missing) as terminal:
        assert terminal.end() == 0
    assert b"\x1b7" not in terminal.raw
    assert b"step 1/2 loss 3" in terminal.raw


@pytest.mark.slow
def test_ctrl_c_and_sigterm_give_the_terminal_back(project: Path) -> None:
    job = start(project, "echo step 1/2 loss 3; sleep 60")
    for end in ("ctrl-c", "sigterm"):
        with Terminal("job-tail", "--job", job.id, cwd=project) as terminal:
            terminal.until("step 1/2  loss 3")
            if end == "ctrl-c":
                terminal.type("\x03")
            else:
                terminal.process.terminate()
            assert terminal.end() in {130, 143}
        assert terminal.raw.count(b"\x1b[r") == 1
    assert remote_tool("job-kill", "--job", job.id, "--signal", "SIGKILL", cwd=project).returncode == 0


def test_it_is_redrawn_at_another_size_and_gone_where_there_is_no_room(tmp_path: Path) -> None:
    with Terminal(cwd=tmp_path, program=["-c", SHOW], environment={"PYTHONPATH": str(REPOSITORY)}) as terminal:
        terminal.until("step 7/9  loss 0.5  acc 97.5")
        assert b"\x1b7\x1b[40;1H\x1b[0m\x1b[K\x1b[7mstep 7/9  loss 0.5  acc 97.5" in terminal.raw
        resize(terminal, 30, 24)
        until_raw(terminal, b"\x1b7\x1b[30;1H\x1b[0m\x1b[K\x1b[7mstep 7/9  loss 0.5  acc\x1b[0m\x1b8")
        resize(terminal, 30, 10)
        until_raw(terminal, b"\x1b7\x1b[r\x1b[30;1H\x1b[0m\x1b[2K\x1b8")
        terminal.type("\n\n")
        assert terminal.end() == 0


def resize(terminal: Terminal, lines: int, columns: int) -> None:
    fcntl.ioctl(terminal.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def until_raw(terminal: Terminal, wanted: bytes) -> None:
    deadline = time.monotonic() + 300
    while wanted not in terminal.raw:
        assert time.monotonic() < deadline, terminal.raw
        terminal._read(0.1)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A tmux of 80 columns and 12 rows; returns what it answers to a command."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("needs tmux")

    def ask(*words: str) -> str:
        command = [tmux, "-f", "/dev/null", "-S", str(tmp_path / "tmux"), *words]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout

    ask("new-session", "-d", "-x", "80", "-y", "12", "sh")
    yield ask
    ask("kill-server")


@pytest.mark.slow
def test_the_log_scrolls_above_it_and_is_whole_in_the_scrollback(screen: Callable[..., str], tmp_path: Path) -> None:
    program = tmp_path / "show.py"
    program.write_text(SHOW)
    # What is typed before the shell asks is echoed before it, and then the first line stands behind its prompt.
    until_shown(screen, "^[$#]$")
    screen("send-keys", f"PYTHONPATH={REPOSITORY} PYTHONUTF8=1 {sys.executable} {program}", "Enter")
    until_shown(screen, "step 7/9  loss 0.5  acc 97.5$")
    rows = until_shown(screen, "^ 20%[|]##$")
    assert rows[-2:] == [" 20%|##", "step 7/9  loss 0.5  acc 97.5"]
    screen("send-keys", "Enter")
    rows = until_shown(screen, "step 8/9  loss 0.5  acc 97.5$")
    assert [rows[-1], rows[-2], rows[-3]] == ["step 8/9  loss 0.5  acc 97.5", "", "step 8/9 after"]
    screen("resize-window", "-x", "60", "-y", "9")
    rows = until_shown(screen, "step 8/9  loss 0.5  acc 97.5$")
    screen("send-keys", "Enter")
    until_shown(screen, "^the end$")
    everything = screen("capture-pane", "-p", "-S", "-").splitlines()
    numbers = [line for line in everything if line.startswith("line ")]
    assert numbers == [f"line {number}" for number in range(60)]
    assert not any("acc 97.5" in line and "\u6f22" not in line for line in everything)


def until_shown(screen: Callable[..., str], pattern: str) -> list[str]:
    deadline = time.monotonic() + 300
    while True:
        rows = [row.rstrip() for row in screen("capture-pane", "-p").split("\n")[:-1]]
        if any(re.search(pattern, row) for row in rows):
            return rows
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)
