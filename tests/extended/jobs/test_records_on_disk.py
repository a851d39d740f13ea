"""The order in which local records reach the disk."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.extended.sweeps.injection import STRACE, can_trace

if TYPE_CHECKING:
    from pathlib import Path

# Everything that is remembered here, written once; twelve jobs wait for the disk in threads.
PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from remote_tool.config.hosts import parse_hosts
from remote_tool.jobs import index, listed_hosts
from remote_tool.jobs.job import JobSpec, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.workflows.fan_out.request import FanOutRequest
from remote_tool.workflows.fan_out.records import FanOutRecord, write_record
from tests.extended.configuration import make_configuration

root = Path(sys.argv[1])
registry = Registry(root / ".remote" / "jobs")
jobs = registry.create([JobSpec(new_job_id(), "first", "true") for _ in range(12)])
registry.update([replace(jobs[0], state=JobState.RUNNING)])
registry.update([replace(job, state=JobState.FAILED) for job in jobs])
write_record(root / ".remote" / "fan-outs", FanOutRecord(new_job_id(), FanOutRequest("true"), shards=1))
listed_hosts.remember_hosts(make_configuration([], root), registry, parse_hosts("10.0.0.1:2"))
index.SETTLED_SECONDS, index.LEAST_NEW = -1.0, 1
Registry(root / ".remote" / "jobs").load()
"""
CALL = re.compile(r"(fsync|rename|renameat|renameat2)\((.*)")


@pytest.mark.slow
@pytest.mark.row(155)
def test_every_record_is_on_the_disk_before_it_has_its_name_and_its_name_soon_after(tmp_path: Path) -> None:
    if not can_trace():
        pytest.skip("strace may trace nothing here")
    log = tmp_path / "calls"
    command = [STRACE, "-f", "-y", "-s", "300", "-e", "trace=fsync,rename,renameat,renameat2", "-o", str(log)]
    # Python renames the files of its cache without this care.
    subprocess.run([*command, sys.executable, "-B", "-c", PROGRAM, str(tmp_path)], check=True, timeout=300)
    calls = [(found[1], found[2]) for found in map(CALL.search, log.read_text().splitlines()) if found]
    renamed: dict[str, int] = {}
    for position, (name, text) in enumerate(calls):
        if name == "fsync":
            continue
        temporary, path = re.findall(r'"([^"]+)"', text)
        assert any(each == "fsync" and f"<{temporary}>" in said for each, said in calls[:position]), path
        folder = path.rpartition("/")[0]
        assert any(each == "fsync" and f"<{folder}>" in said for each, said in calls[position:]), path
        kind = path.rpartition("/")[2] if "fan-outs" not in path else "fan-out"
        renamed[kind] = renamed.get(kind, 0) + 1
    assert renamed == {"last_key": 1, "job.yaml": 12 + 1 + 12, "fan-out": 1, "hosts.yaml": 1, ".index": 1}
    # A job's folder is a name, too.
    new = max(position for position, (name, text) in enumerate(calls) if "job.yaml" in text and name != "fsync")
    assert any(f"<{tmp_path}/.remote/jobs>" in text for name, text in calls[: new + 1] if name == "fsync")
