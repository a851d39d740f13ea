"""What comes home of the output of a job has a bound, and a job that ran out of memory says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import before_each_request, until
from tests.promises.kinds import works

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

MB = 1_000_000
MOST_FILES = 4096
# The kernel's count of processes that it killed for their memory, of the control group of a process; made by hand.
EVENTS = '/sys/fs/cgroup"$(sed -n s/^0:://p /proc/self/cgroup)"/memory.events'
COUNTS = f"""\
if [ "$INSIDE" = "" ]; then INSIDE=1 exec unshare --mount "$0" "$@"; fi
mount -t tmpfs none /sys/fs/cgroup
mkdir -p "$(dirname {EVENTS})"
printf 'oom 0\\noom_kill 2\\n' > {EVENTS}
"""


def at_home(desk: Desk, name: str = "job.out") -> Path:
    """Return the place of an output file of the first job on this machine."""
    return desk.root / ".remote" / "jobs" / str(desk.job(1)["id"]) / name


@pytest.mark.row(76)
def test_output_beyond_the_limit_does_not_come_home_and_is_reported(desk: Desk) -> None:
    desk.does("job-run", "--no-sync", "--cmd", f"head -c {8 * MB} /dev/zero | tr '\\0' y")
    desk.waits_for(1, "succeeded")
    desk.configure(log_limit="2MB")
    assert "sent more output of job 1 than log_limit allows" in desk.refuses("job-rsync")
    assert at_home(desk).stat().st_size < 8 * MB
    # What is missing can still come.
    desk.configure(log_limit="4GB")
    desk.does("job-rsync")
    assert at_home(desk).read_bytes() == b"y" * 8 * MB


@pytest.mark.row(76)
@pytest.mark.slow
def test_of_very_many_output_files_the_first_come_home_and_this_is_said(desk: Desk) -> None:
    many = MOST_FILES + 200
    folder = ".jobs/$REMOTE_TOOL_JOB_ID/ranks/run/attempt_0"
    command = f"mkdir -p {folder}; cd {folder}; mkdir $(seq {many}); for i in $(seq {many}); do : > $i/stdout.log; done"
    desk.does("job-run", "--no-sync", "--cmd", command)
    desk.waits_for(1, "succeeded")
    pulled = desk.tries("job-rsync")
    assert pulled.returncode == 0
    assert f"job 1: only {MOST_FILES} of its output files are pulled" in " ".join(pulled.stderr.split())
    assert len([path for path in at_home(desk, "ranks").rglob("*") if path.is_file()]) <= MOST_FILES


@pytest.mark.row(8)
@pytest.mark.skipif(not works("unshare --mount true"), reason="control groups of one's own need root")
def test_a_job_that_the_kernel_killed_for_its_memory_says_so_and_another_one_does_not(desk: Desk) -> None:
    before_each_request(desk, COUNTS)
    desk.does("job-run", "--no-sync", "--cmd", f"printf 'oom 1\\noom_kill 3\\n' > {EVENTS}; kill -9 $$")
    desk.does("job-run", "--no-sync", "--cmd", "kill -9 $$")
    until(lambda: all(job["ended_at"] for job in desk.jobs()), "the end of both")
    first, second = (str(desk.job(key)["reason"]) for key in (1, 2))
    assert "out of memory: the kernel killed it at the memory limit of the machine or of its control group" in first
    assert "ended by SIGKILL" in second
    assert "memory" not in second
