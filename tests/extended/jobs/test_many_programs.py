"""Many programs that use one registry at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.hosts import parse_hosts
from remote_tool.config.loading import parse
from remote_tool.jobs.listed_hosts import recall_hosts, remember_hosts
from remote_tool.jobs.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(122)
def test_twenty_programs_at_once_lose_no_job_and_share_no_key(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from remote_tool.jobs.registry import Registry;"
        "from remote_tool.jobs import registry; from remote_tool.jobs.job import JobSpec, new_job_id\n"
        # A lock does not go round in turn.
        "registry.LOCK_TIMEOUT = 60.0\n"
        "for _ in range(10): Registry(Path(sys.argv[1])).create([JobSpec(new_job_id(), 'a', 'x')])"
    )
    programs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(20)]
    assert [program.wait(60) for program in programs] == [0] * 20
    jobs, bad = Registry(tmp_path).load()
    assert sorted(job.key for job in jobs) == list(range(1, 201))
    assert not bad


def test_lists_at_the_same_time_forget_no_host(tmp_path: Path) -> None:
    config = parse(b"name: x\nservers: {gpu1: {hostname: 10.0.0.5}}", tmp_path / ".remote" / "configs.yaml", tmp_path)
    folder = config.local.jobs

    def remember(number: int) -> None:
        remember_hosts(config, Registry(folder), parse_hosts(f"10.1.0.{number}:2,user{number}@shared"))

    threads = [threading.Thread(target=remember, args=(number,)) for number in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = [
        server for server in recall_hosts(config, Registry(folder), pytest.fail).servers.values() if server.is_listed
    ]
    assert {each.hostname for each in known} == {f"10.1.0.{number}" for number in range(1, 13)} | {"shared"}
    assert len({each.username for each in known if each.hostname == "shared"}) == 12
