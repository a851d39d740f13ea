"""Limits and retries of jobs, from options and the configuration to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobSelection, LaunchRequest, StartRequest, Workspace
from remote_tool.config.limits import on_empty_of
from remote_tool.errors import UsageError
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sshd import TestServer

CONFIGURED = {"max_duration": "2d", "stop_if_idle": "30m", "retries": 2, "retry_on": [75, "SIGKILL"]}


def configured(tmp_path: Path, servers: tuple[TestServer, TestServer], **settings: object) -> Workspace:
    """Return a prepared workspace with these settings."""
    root = make_project(tmp_path / "project", servers, name=f"project-{tmp_path.name}", **settings)
    workspace = Workspace.find(root)
    workspace.prepare()
    return workspace


def limits_of(job: Any) -> tuple[object, ...]:
    return job.max_duration, job.stop_if_idle, job.retries, job.retry_on


@pytest.mark.slow
def test_options_take_precedence_over_the_configuration(
    tmp_path: Path, shared_servers: tuple[TestServer, TestServer]
) -> None:
    workspace = configured(tmp_path, shared_servers, **CONFIGURED)
    requests = [
        StartRequest("true", ("first",), sync=False),
        StartRequest("true", ("first",), sync=False, max_duration="90s", stop_if_idle=0, retries=0),
        StartRequest("true", ("first",), sync=False, max_duration=1.5, retry_on=()),
        StartRequest("true", ("first",), sync=False, terminal="command"),
    ]
    jobs = workspace.start_jobs(*requests).jobs
    assert [limits_of(job) for job in jobs] == [
        (172_800.0, 1800.0, 2, ("75", "SIGKILL")),
        (90.0, None, None, ()),
        (1.5, 1800.0, 2, ()),
        (172_800.0, 1800.0, None, ()),
    ]
    # As a second laptop learns them.
    assert {limits_of(job) for job in workspace.list_jobs(JobSelection(stopped=True)).jobs} == {
        limits_of(job) for job in jobs
    }
    workspace.wait_jobs(JobSelection(jobs=tuple(job.id for job in jobs)))


@pytest.mark.slow
@pytest.mark.row(285)
def test_a_limit_of_one_node_ends_the_launch(tmp_path: Path, shared_servers: tuple[TestServer, TestServer]) -> None:
    workspace = configured(tmp_path, shared_servers)
    request = LaunchRequest("exec sleep 600", ("first", "second"), launcher="shell", sync=False, max_duration=2)
    jobs = workspace.launch(request).jobs
    ended = workspace.wait_jobs(JobSelection(jobs=tuple(job.id for job in jobs))).jobs
    assert [job.state.value for job in ended] == ["killed", "killed"]
    assert all("ran for 2s, its max_duration" in job.reason for job in ended)


@pytest.mark.slow
def test_attempts_are_in_the_record_of_a_job(tmp_path: Path, shared_servers: tuple[TestServer, TestServer]) -> None:
    workspace = configured(tmp_path, shared_servers)
    job = workspace.start("first", "exit $((REMOTE_TOOL_ATTEMPT + 2))", sync=False, retries=1)
    (ended,) = workspace.wait_jobs(JobSelection(jobs=(job.id,))).jobs
    assert (ended.exit_code, ended.failed_attempts) == (4, ("exit code 3",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_duration": "soon"}, "--max-duration must be a duration such as 45s, 90m, 12h or 2d, or 0, found 'soon'"),
        ({"max_duration": -1}, "--max-duration must be a duration"),
        ({"stop_if_idle": True}, "--stop-if-idle must be a duration"),
        ({"retries": 101}, "--retries must be a whole number from 0 to 100, found 101"),
        ({"retry_on": ("SIGNAL 9",)}, "--retry-on takes an exit code such as 75, or a signal such as SIGKILL"),
        ({"retries": 1, "terminal": "command"}, "--retries and --tty cannot be combined"),
    ],
)
def test_invalid_limits_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        StartRequest("true", ("first",), **options)
    assert error.value.message.startswith(message)


def test_the_command_for_an_empty_server_needs_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text(
        "name: project\n"
        "servers: {first: {hostname: 127.0.0.1}}\n"
        "on_empty: {run: stop, secrets: [CLOUD_TOKEN], after: 90s}\n"
    )
    config = Workspace.find(tmp_path).config
    monkeypatch.delenv("CLOUD_TOKEN", raising=False)
    with pytest.raises(UsageError, match=r"^on_empty in configs\.yaml needs CLOUD_TOKEN, which is not set here"):
        on_empty_of(config, "first")
    monkeypatch.setenv("CLOUD_TOKEN", "a secret of the cloud")
    assert on_empty_of(config, "first") == ("stop", {"CLOUD_TOKEN": "a secret of the cloud"}, 90.0)
