"""Works that show what jobs print."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import programs
from benchmarks.contest import BY_HAND, MEMORY, OURS, Contender, Goal, Work
from tests.sshd import TestServer

if TYPE_CHECKING:
    from benchmarks.field import Field, Server

_SUPERVISOR = "its supervisor, % of a core"
_SLOWEST = "its 99th percentile, ms"
LINES = 300


def tail(field: Field) -> Work:
    """Show what a job writes: how much later a line is here than half of them, and than all but one of a hundred."""
    (server,) = field.servers
    field.fill({"speak.py": programs.SPEAK.encode()})
    field.tool("prepare")
    field.tool("rsync")
    for name in ("hand", "labml"):
        (server.home / name).mkdir(exist_ok=True)
        (server.home / name / "speak.py").write_text(programs.SPEAK)
    program = f"exec {sys.executable} speak.py {LINES}"
    last: list[float] = []

    def ours() -> float:
        tag = f"tail-{time.time_ns()}"
        field.tool("job-run", "--server", server.name, "--no-sync", "--tag", tag, "--cmd", program)
        last[:] = _delays(field, [*field.program, "job-tail", "--tag", tag], field.ours)
        return statistics.median(last)

    def by_hand() -> float:
        folder = field.there(server, "hand")
        field.everywhere(f"cd {folder} && rm -f log && touch log; setsid sh -c '{program}' > log < /dev/null 2>&1 &")
        line = f"{field.ssh(server)} 'exec tail -n +1 -F {folder}/log'"
        return statistics.median(_delays(field, ["bash", "-c", f"exec {line}"], field.hand))

    contenders = (
        Contender(BY_HAND, by_hand),
        Contender(OURS, ours),
        Contender(_SLOWEST, lambda: statistics.quantiles(last, n=100)[98]),
    )
    goals = (Goal(5, "ms"), Goal(25, "ms", of=_SLOWEST))
    title = "job-tail, from the job's write to our stdout, median of the lines"
    return Work("tail", title, contenders, goals, unit="ms", warms_up=False)


def print_much(field: Field) -> Work:
    """Print 100 MB in a second, for five."""
    (server,) = field.servers
    field.fill({"print_much.py": programs.PRINT.encode()})
    field.tool("prepare")
    (server.home / "hand").mkdir(exist_ok=True)
    (server.home / "hand" / "print_much.py").write_text(programs.PRINT)
    program = f"exec {sys.executable} print_much.py 500"

    def by_hand() -> float:
        field.everywhere(f"cd {field.there(server, 'hand')} && rm -f log && {{ {program}; }} > log")
        return float((server.home / "hand" / "seconds").read_text())

    seen = Supervision()

    def ours() -> float:
        (server.home / "ours" / "seconds").unlink(missing_ok=True)
        field.tool("job-run", "--server", server.name, "--no-sync", "--tag", "print", "--cmd", program)
        seen.watch(server)
        field.tool("job-wait", "--tag", "print")
        for folder in (server.home / "ours" / ".jobs").iterdir():
            shutil.rmtree(folder, ignore_errors=True)
        return float((server.home / "ours" / "seconds").read_text())

    contenders = (
        Contender(BY_HAND, by_hand),
        Contender(OURS, ours),
        Contender(_SUPERVISOR, lambda: seen.percent),
        Contender(MEMORY, lambda: seen.megabytes),
    )
    title = "a job printing 100 MB/s for 5 s, until it has written that"
    goals = (Goal(1.0), Goal(1, "% of a core", of=_SUPERVISOR), Goal(20, "MB", of=MEMORY))
    return Work("print", title, contenders, goals, warms_up=False)


class Supervision:
    """What the supervisor of the last job took while its command ran.

    Attributes:
        percent: Of a core.
        megabytes: At most.
    """

    percent = 0.0
    megabytes = 0.0

    def watch(self, server: Server) -> None:
        """Look at the one supervisor of a server until it has ended."""
        (record,) = (server.home / "ours" / ".jobs").glob("*/started.json")
        pid = int(json.loads(record.read_text())["supervisor"]["pid"])
        process = Path("/proc") / str(pid if isinstance(server, TestServer) else server.outer_pid(pid))
        began, before = time.monotonic(), _processor_seconds(process)
        while (now := _processor_seconds(process)) is not None and before is not None:
            self.percent = 100 * (now - before) / max(0.5, time.monotonic() - began)
            self.megabytes = _most_memory(process) or self.megabytes
            time.sleep(0.05)


def _processor_seconds(process: Path) -> float | None:
    """Return the time that a process has had, also in the kernel; None when it has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _most_memory(process: Path) -> float:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)


def _delays(field: Field, words: list[str], folder: Path) -> list[float]:
    """Read what a program shows of the job until its last line; return the milliseconds from each line's writing."""
    delays = []
    program = field.begin(words, folder)
    assert program.stdout is not None
    try:
        for line in program.stdout:
            arrived = time.time_ns()
            if line.strip() == b"end":
                break
            delays.append((arrived - int(line)) / 1e6)
    finally:
        program.kill()
        program.communicate()
    # The first lines were there before anybody looked.
    return delays[len(delays) // 3 :]
