"""The records of jobs on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


@pytest.mark.row(122)
def test_programs_at_once_lose_no_job_and_share_no_key(desk: Desk) -> None:
    programs = [desk.runs_meanwhile("job-run", "--no-sync", "--cmd", f"echo {number}") for number in range(6)]
    assert [(program.communicate()[0], program.returncode)[1] for program in programs] == [0] * 6
    jobs = desk.jobs()
    assert sorted(job["key"] for job in jobs) == [1, 2, 3, 4, 5, 6]
    assert sorted(job["command"] for job in jobs) == [f"echo {number}" for number in range(6)]


@pytest.mark.row(125)
def test_jobs_of_a_server_that_does_not_answer_are_shown_as_they_were(desk_of_two: Desk) -> None:
    desk = desk_of_two
    desk.does("job-run", "--no-sync", "--cmd", "exec sleep 1000")
    desk.waits_for(1, "running")
    servers = desk.settings()["servers"]
    right = servers["first"]["port"]
    servers["first"]["port"] = 1
    desk.configure(servers=servers, keep_connections=0)
    listed = desk.tries("job-list", "--json")
    states = {job["server"]: (job["state"], job["reason"]) for job in json.loads(listed.stdout)["jobs"]}
    assert (listed.returncode, states["second"][0]) == (3, "running")
    assert states["first"][0] == "unreachable"
    assert states["first"][1].startswith("last seen running, ")
    assert "first" in listed.stderr
    servers["first"]["port"] = right
    desk.configure(servers=servers)
    assert {job["state"] for job in desk.jobs()} == {"running"}
    desk.does("job-kill", "--all", "--yes")
