"""Works that a person waits for: the first line of a job, the end of one, and the output after a broken connection."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from benchmarks import programs
from benchmarks.contest import BY_HAND, OURS, Contender, Goal, Work
from benchmarks.field import LONGEST, small_files
from benchmarks.works.plan import by_name, how_many, wait_for
from benchmarks.works.syncs import rsync_by_hand

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.field import Field, Server

FILES = 200
# The text is not in the command, which both programs may print.
SAY = "echo first-$((40 + 2))"
FIRST = b"first-42"
PROCESSES = 3
REQUESTS = (
    "The start of the program takes 0.2 s of processor time. Then come two or three requests one after the other"
    " (sync, start, follow; or state, stop), each of which starts a Python on each server: 25 ms of processor"
    " time."
)
SILENCE = 60.0


def prepare(field: Field) -> None:
    """Send a small project, and keep logins from now on."""
    field.fill(small_files(FILES) | {"clock.py": programs.CLOCK.encode()})
    field.configure(keep=True)
    field.tool("prepare")
    field.shell(rsync_by_hand(field, keep=True))


def first_line(field: Field) -> Work:
    """Sync the project, start a job on each server, and show its first line here."""
    prepare(field)
    count = len(field.servers)
    contenders = (
        Contender(BY_HAND, lambda: first_line_by_hand(field, count)),
        Contender(OURS, lambda: first_line_ours(field, count)),
    )
    goals = {1: (Goal(0.35, "s", why=REQUESTS),), 8: (Goal(0.8, "s", why=REQUESTS),)}.get(count, ())
    title = f"job-run --follow, until its first line is here, by hand with ControlPersist, {how_many(field)}"
    return Work(f"submit-{count}", title, contenders, goals)


def first_line_ours(field: Field, count: int) -> float:
    """Return the seconds from the start of our command to the first line of the job on each of so many servers."""
    words = [*field.program, "job-run", "--follow", "--cmd", SAY, *by_name(field.servers[:count])]
    return _until_lines(field.begin(words, field.ours), count)


def first_line_by_hand(field: Field, count: int) -> float:
    """Return the same of rsync and ssh."""
    commands = []
    for server in field.servers[:count]:
        command = f"cd {field.there(server, 'hand')} && {SAY}"
        commands.append(f"{field.ssh(server, keep=True)} {shlex.quote(command)}")
    line = f"{{ {rsync_by_hand(field, keep=True, count=count)}; }} && {{ {field.in_parallel(*commands)}; }}"
    return _until_lines(field.begin(["bash", "-c", line], field.hand), count)


def _until_lines(program: subprocess.Popen[bytes], count: int) -> float:
    begin = time.perf_counter()
    for number, _ in enumerate((line for line in _lines(program) if FIRST in line), 1):
        if number == count:
            # The program ends when its jobs do, which is now.
            seconds = time.perf_counter() - begin
            program.communicate(timeout=LONGEST)
            return seconds
    raise RuntimeError(f"no line of {count} jobs, but status {program.wait()}")


def _lines(program: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Read what a program prints; one that is silent for too long is killed."""
    assert program.stdout is not None
    alarm = Timer(SILENCE, os.killpg, (program.pid, signal.SIGKILL))
    alarm.start()
    try:
        yield from program.stdout
    finally:
        alarm.cancel()


def kill(field: Field) -> Work:
    """Stop a job of a few processes on each server, until the last of them has ended."""
    prepare(field)
    count = len(field.servers)
    contenders = (
        Contender(BY_HAND, lambda: kill_by_hand(field, count)),
        Contender(OURS, lambda: kill_ours(field, count)),
    )
    goals = (Goal(0.3, "s", why=REQUESTS),) if count == 1 else ()
    title = f"job-kill, until the last process has ended, by hand with ControlPersist, {how_many(field)}"
    return Work(f"kill-{count}", title, contenders, goals)


def kill_ours(field: Field, count: int) -> float:
    """Return the seconds from the start of ``job-kill`` to the end of the last process on so many servers."""
    mark, job = _obedient()
    field.tool("job-run", "--no-sync", "--tag", mark, "--cmd", job, *by_name(field.servers[:count]))
    words = [*field.program, "job-kill", "--yes", "--tag", mark]
    return _until_gone(mark, count, lambda: field.begin(words, field.ours))


def kill_by_hand(field: Field, count: int) -> float:
    """Return the same of ``pkill`` over ssh."""
    mark, job = _obedient()
    field.everywhere(f"setsid nohup sh -c {shlex.quote(job)} > /dev/null 2>&1 < /dev/null &", keep=True, count=count)
    line = field.in_parallel(
        *(f"{field.ssh(server, keep=True)} 'pkill -f ^sleep.{mark}'" for server in field.servers[:count])
    )
    return _until_gone(mark, count, lambda: field.begin(["bash", "-c", line], field.hand))


def _obedient() -> tuple[str, str]:
    """Return a number that no other process sleeps for, and a job of processes that sleep and end when asked to."""
    mark = f"600.{time.time_ns()}"
    return mark, f"sleep {mark} & " * (PROCESSES - 1) + f"exec sleep {mark}"


def _until_gone(mark: str, count: int, stop: Callable[[], subprocess.Popen[bytes]]) -> float:
    wait_for(lambda: len(_sleeping(mark)) == PROCESSES * count)
    processes = _sleeping(mark)
    begin = time.perf_counter()
    program = stop()
    try:
        wait_for(lambda: not any(map(Path.exists, processes)))
        seconds = time.perf_counter() - begin
        program.communicate(timeout=LONGEST)
    finally:
        program.kill()
    return seconds


def _sleeping(mark: str) -> list[Path]:
    """Find the processes in /proc that sleep for so long; servers in namespaces are seen from here, too."""
    found, wanted = [], f"sleep\0{mark}\0".encode()
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and (process / "cmdline").read_bytes() == wanted:
                found.append(process)
    return found


def reattach(field: Field) -> Work:
    """Show what a job prints, and show more of it after its connection was cut."""
    prepare(field)
    contenders = (
        Contender(BY_HAND, lambda: reattach_by_hand(field, len(field.servers))),
        Contender(OURS, lambda: reattach_ours(field, len(field.servers))),
    )
    title = f"job-tail, from a cut connection to the next line, {how_many(field)}"
    return Work(f"reattach-{len(field.servers)}", title, contenders)


def reattach_ours(field: Field, count: int) -> float:
    """Return the seconds from the cut of all connections to a line of each job that was written after it."""
    tag = f"clock-{time.time_ns()}"
    servers = field.servers[:count]
    job = f"exec {sys.executable} clock.py"
    field.tool("job-run", "--no-sync", "--tag", tag, "--cmd", job, *by_name(servers))
    try:
        return _until_back(field.begin([*field.program, "job-tail", "--tag", tag], field.ours), servers)
    finally:
        field.tool("job-kill", "--yes", "--tag", tag)


def reattach_by_hand(field: Field, count: int) -> float:
    """Return the same of a loop around ``ssh`` and ``tail -F``."""
    servers = field.servers[:count]
    mark, loops = f"{time.time_ns()}", []
    for server in servers:
        folder = field.there(server, "hand")
        clock = f"cd {folder}; setsid {sys.executable} clock.py {mark} > log 2>&1 < /dev/null &"
        field.shell(f"{field.ssh(server)} {shlex.quote(clock)}")
        tail = f"{field.ssh(server)} 'exec tail -n 1 -F {folder}/log' | sed -u 's/^/{server.name} /'"
        loops.append(f"while :; do {tail}; done")
    try:
        return _until_back(field.begin(["bash", "-c", field.in_parallel(*loops)], field.hand), servers)
    finally:
        # Not the shell that looks for it.
        field.everywhere(f"pkill -f 'clock.p[y] {mark}'", count=count)


def _until_back(program: subprocess.Popen[bytes], servers: Sequence[Server]) -> float:
    try:
        newest = _stamps(program)
        seen: set[bytes] = set()
        while len(seen) < len(servers):
            seen.add(next(newest)[0])
        for server in servers:
            server.drop_connections()
        cut = time.time_ns()
        back: set[bytes] = set()
        while len(back) < len(servers):
            name, written = next(newest)
            if written > cut:
                back.add(name)
        return (time.time_ns() - cut) / 1e9
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate(timeout=LONGEST)


def _stamps(program: subprocess.Popen[bytes]) -> Iterator[tuple[bytes, int]]:
    """Read whose line it is, and when it was written."""
    for line in _lines(program):
        name, _, written = line.strip().rpartition(b" ")
        if written.isdigit():
            yield name, int(written)
    raise RuntimeError(f"no line any more, but status {program.wait()}")
