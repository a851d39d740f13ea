"""``job-kill --orphans`` on two servers: listed, ended, and proved to be gone."""

from __future__ import annotations

import json
import math
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import Workspace
from remote_tool.errors import UsageError
from tests.described import undescribed
from tests.extended.workflows.jobs.test_jobs import until
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import kill, start
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool import Job
    from tests.sshd import TestServer


@pytest.fixture
def lost(project: Path, servers: tuple[TestServer, TestServer]) -> Iterator[list[Job]]:
    """A job on each server whose supervisor was killed, so that its processes are left."""
    jobs = [start(project, "echo up; sleep 600", server=server.name) for server in servers]
    try:
        for job, server in zip(jobs, servers, strict=True):
            folder = server.home / "project" / ".jobs" / job.id
            until(partial(_has_text, folder / "job.out"))
            supervisor = json.loads((folder / "started.json").read_text())["supervisor"]["pid"]
            os.kill(supervisor, signal.SIGKILL)
            until(partial(_is_gone, supervisor))
        yield jobs
    finally:
        for job in jobs:
            for pid in processes_of(job.id):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _has_text(path: Path) -> bool:
    return path.exists() and path.read_text() != ""


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def orphans_of(project: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    ran = remote_tool("job-kill", "--orphans", "--json", *options, cwd=project)
    document = json.loads(ran.stdout)
    assert undescribed(document) == set()
    return ran.returncode, document["strays"]


@pytest.mark.slow
def test_on_a_terminal_orphans_end_when_the_user_says_so(project: Path, lost: list[Job]) -> None:
    for answer, status, said in (("n", 1, "nothing was ended"), ("y", 0, "no orphans left")):
        with Terminal("job-kill", "--orphans", cwd=project) as terminal:
            terminal.until("End ")
            terminal.type(f"{answer}\n")
            terminal.until(said)
            assert terminal.end() == status
        assert [bool(processes_of(job.id)) for job in lost] == [answer == "n"] * 2


@pytest.mark.slow
def test_orphans_are_shown_and_ended_when_the_user_confirms(project: Path, lost: list[Job]) -> None:
    running = start(project, "sleep 600")
    shown = remote_tool("job-kill", "--orphans", cwd=project)
    assert shown.returncode == 1
    heading, *rows = shown.stdout.splitlines()
    assert heading.split() == ["SERVER", "PID", "JOB", "STATE", "AGE", "MEMORY", "GPU", "COMMAND"]
    assert {row.split()[0] for row in rows} == {"first", "second"}
    assert {row.split()[2] for row in rows} == {str(job.key) for job in lost}
    assert shown.stderr == "nothing was ended; --yes ends them\n"
    status, listed = orphans_of(project, "--server", "first")
    assert (status, {each["job"] for each in listed}) == (1, {lost[0].id})
    assert not any(each["ended"] for each in listed)
    workspace = Workspace.find(project)
    with pytest.raises(UsageError, match="--grace must be"):
        workspace.end_orphans(workspace.find_orphans(), grace=math.inf)
    status, ended = orphans_of(project, "--yes")
    assert (status, {each["job"] for each in ended}) == (0, {job.id for job in lost})
    assert all(each["ended"] for each in ended)
    assert [processes_of(job.id) for job in lost] == [[], []]
    assert processes_of(running.id)
    kill(project, running)
    nothing = remote_tool("job-kill", "--orphans", cwd=project)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "no orphans\n")
    Workspace.find(project).list_jobs()


def test_orphans_and_jobs_are_not_chosen_together(project: Path) -> None:
    ran = remote_tool("job-kill", "--orphans", "--job", "1", cwd=project)
    assert ran.returncode == 2
    assert "error: --orphans cannot be combined with jobs or tags" in ran.stderr


def test_the_other_server_is_asked_when_one_is_away(away: Path) -> None:
    ran = remote_tool("job-kill", "--strays", "--json", cwd=away)
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["strays"]) == (3, [])
    assert [each["server"] for each in document["errors"]] == ["away"]
    shown = remote_tool("job-kill", "--orphans", cwd=away)
    assert shown.returncode == 3
    assert "error: " in shown.stderr
    assert "no orphans" not in shown.stderr


def test_the_older_name_of_the_option_works_and_is_hidden(away: Path) -> None:
    ran = remote_tool("job-kill", "--strays", "--json", cwd=away)
    assert (ran.returncode, json.loads(ran.stdout)["strays"]) == (3, [])
    assert "--strays" not in remote_tool("job-kill", "--help", cwd=away).stdout
