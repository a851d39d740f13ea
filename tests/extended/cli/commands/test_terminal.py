"""What a session on a terminal does that is seen in its parts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.cli.local_screen import LAST, NOT_BELOW
from remote_tool.jobs.job import JobState
from remote_tool.workflows.selection import JobsAnswer
from remote_tool.workflows.terminal.shell import ShellRequest
from tests.extended.transport.channels import stopped
from tests.program import remote_tool
from tests.project import kill, make_project
from tests.shells import DRAWS, LONG, prompt, say, shell
from tests.sshd import TestServer

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool import Job


class _SeenError(Exception):
    """The job that a shell would attach to."""


@pytest.mark.row(236)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_two_programs_that_see_no_running_kept_shell_start_the_same_one(
    project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, *, is_recorded: bool
) -> None:
    class Screen:
        is_terminal, window, variables = True, (24, 80), {"TERM": "xterm"}

    async def nothing(*_: object) -> JobsAnswer:
        # The other program has recorded it, and its server does not have it yet.
        return JobsAnswer(tuple(replace(job, state=JobState.STARTING) for job in seen if is_recorded))

    async def attach(_context: object, job: Job, _screen: object) -> None:
        raise _SeenError(job)

    monkeypatch.setattr("remote_tool.workflows.terminal.shell.list_jobs", nothing)
    monkeypatch.setattr("remote_tool.workflows.terminal.shell.attach_to", attach)
    workspace, seen = Workspace.find(project), []
    for _ in range(2):
        with pytest.raises(_SeenError) as attached:
            workspace.shell(ShellRequest(servers=("first",), keep=f"twin-{is_recorded}"), Screen())  # type: ignore[arg-type]
        seen.append(attached.value.args[0])
    request.addfinalizer(lambda: kill(project, *seen))
    assert seen[0].id == seen[1].id
    assert [job.state for job in seen] == [JobState.RUNNING, JobState.RUNNING]


@pytest.mark.row(235)
@pytest.mark.slow
@pytest.mark.parametrize("keep_connections", ["0", "10m"])
def test_a_silent_server_is_named_and_the_screen_stays(tmp_path: Path, ssh_key: Path, keep_connections: str) -> None:
    with TestServer("mute", tmp_path / "mute", ssh_key) as server:
        root = make_project(tmp_path / "project", [server], keep_connections=keep_connections)
        prepared = remote_tool("prepare", cwd=root)
        assert prepared.returncode == 0, prepared.stderr
        with shell(root, server="mute") as terminal:
            prompt(terminal)
            with stopped(server):
                terminal.until("mute: no answer for 5 s (~. on a new line disconnects)", seconds=LONG)
            terminal.until_bytes(NOT_BELOW, LONG)
            say(terminal, "echo still $((1+1))", "still 2")
            terminal.type("exit\r")
            assert terminal.end(LONG) == 0
        with shell(root, "--", "python", "-c", DRAWS, server="mute") as terminal:
            terminal.until("drawn 40", seconds=LONG)
            with stopped(server):
                terminal.until("mute: no answer for 5 s", seconds=LONG)
                assert LAST[:8] % 40 in terminal.raw
            # The line that was drawn over is drawn again by the program.
            terminal.until("drawn 40", times=2, seconds=LONG)
            terminal.type("\r~.")
            assert terminal.end(LONG) == 0
