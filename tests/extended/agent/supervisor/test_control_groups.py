"""What the kernel does to jobs in control groups: it kills at a limit of memory, and at the end of a session."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.proc import processes
from tests.extended.agent.conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = Path("/sys/fs/cgroup")
MEGA = 1_000_000
EAT_MEMORY = "x = []\nwhile True: x.append(bytearray(1_000_000))\n"


@contextmanager
def control_group(controller: str) -> Iterator[Path]:
    """Make a control group of either version; skip where none can be made."""
    is_second = (GROUPS / "cgroup.controllers").exists()
    group = (GROUPS if is_second else GROUPS / controller) / f"remote-tool-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no {controller} control group can be made here: {error.strerror}")
    try:
        if not list(group.glob(f"{controller}.*")):
            pytest.skip(f"this system has no {controller} control group")
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        wait_until(lambda: has_gone(group), "the end of the group")


def has_gone(group: Path) -> bool:
    """Remove a control group; False while a process is in it, even one that only waits for its parent."""
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def run_below(server: PretendServer, script: str) -> None:
    """Have the control program, and with it the supervisors, run below a few shell commands."""
    wrapper = server.home / "python"
    wrapper.write_text(f'#!/bin/sh\n{script}\nexec {server.python} "$@"\n')
    wrapper.chmod(0o700)
    server.python = str(wrapper)


@pytest.mark.row(8)
@pytest.mark.slow
def test_a_job_killed_at_the_memory_limit_of_its_group_says_so(server: PretendServer) -> None:
    """As in a container, or with a limit of the administrator."""
    with control_group("memory") as group:
        limit = next(path for name in ("memory.max", "memory.limit_in_bytes") if (path := group / name).exists())
        limit.write_text(str(80 * MEGA))
        run_below(server, f"echo $$ > {group}/cgroup.procs")
        job_id = server.start_python(EAT_MEMORY)
        ended = server.wait(job_id)[job_id]
        assert ended["signal"] == "SIGKILL"
        assert not ended["killed"]
        assert (
            "out of memory: the kernel killed it at the memory limit of the machine or of its control group"
            in ended["reason"]
        )
        assert server.status(job_id)["state"] == "failed"


@pytest.mark.row(8)
def test_an_oom_kill_counted_by_cgroups_v2_is_reported(server: PretendServer) -> None:
    """The kernel's file is made by hand: where groups are of the first version, it has none."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a /sys/fs/cgroup of its own needs root and unshare")
    events = f'{GROUPS}"$(sed -n s/^0:://p /proc/self/cgroup)"/memory.events'
    run_below(
        server,
        f"""if [ "$INSIDE" = "" ]; then INSIDE=1 exec unshare --mount "$0" "$@"; fi
mount -t tmpfs none {GROUPS}; mkdir -p "$(dirname {events})"; printf 'oom 0\\noom_kill 2\\n' > {events}""",
    )
    jobs = {
        "out of memory": server.new_job(f"printf 'oom 1\\noom_kill 3\\n' > {events}; kill -9 $$"),
        "": server.new_job("kill -9 $$"),
    }
    for expected, job in jobs.items():
        server.call("start", jobs=[job])
        reason = server.wait(job["id"])[job["id"]]["reason"]
        assert reason.startswith("ended by SIGKILL")
        assert ("control group" in reason) == bool(expected)


@pytest.mark.row(15)
def test_a_job_that_a_logout_ended_is_lost_and_not_running(server: PretendServer) -> None:
    """With KillUserProcesses=yes the whole control group of the session is killed at its end."""
    root = GROUPS / "unified" if (GROUPS / "unified").is_dir() else GROUPS
    session = root / f"remote-tool-test-{os.getpid()}"
    try:
        session.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        if not (session / "cgroup.kill").exists():
            pytest.skip("this kernel does not kill control groups")
        run_below(server, f"echo $$ > {session}/cgroup.procs")
        job_id = server.start("sleep 600 & exec setsid sleep 600")
        started = server.record(job_id, "started")
        (session / "cgroup.kill").write_text("1")
        wait_until(lambda: processes.find_alive(started["supervisor"]) is None)
        wait_until(lambda: not server.members(job_id), "the end of the job")
        status = wait_until(lambda: (found := server.status(job_id))["state"] != "running" and found)
        assert status["state"] == "lost"
        assert status["reason"] == "its processes disappeared without a record"
        assert server.members(job_id) == []
    finally:
        wait_until(lambda: has_gone(session), "the end of the group")
