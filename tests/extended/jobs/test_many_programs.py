"""Many programs that use one registry at the same time."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from remote_tool.jobs.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(122)
def test_twenty_programs_at_once_lose_no_job_and_share_no_key(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from remote_tool.jobs.registry import Registry;"
        "from remote_tool.jobs import registry_lock; from remote_tool.jobs.job import JobSpec, new_job_id\n"
        # A lock does not go round in turn.
        "registry_lock.LOCK_TIMEOUT = 60.0\n"
        "for _ in range(10): Registry(Path(sys.argv[1])).create([JobSpec(new_job_id(), 'a', 'x')])"
    )
    programs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(20)]
    assert [program.wait(60) for program in programs] == [0] * 20
    jobs, bad = Registry(tmp_path).load()
    assert sorted(job.key for job in jobs) == list(range(1, 201))
    assert not bad
