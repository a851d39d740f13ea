"""Twenty thousand jobs that have ended cost a question about jobs a few kilobytes, and hide no new one."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import JobState, Workspace
from remote_tool.jobs import index
from remote_tool.jobs.record_file import format_record
from remote_tool.jobs.registry import Registry
from remote_tool.protocol.fingerprints import BUCKETS, fingerprints, is_fingerprints, unlike
from remote_tool.workflows import agent_client
from tests.extended.workflows.jobs.test_jobs import begin, begin_and_run, by_id, remote_folder
from tests.figures import record_figure
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

MANY = 20_000
FEW_BYTES = 8 * 1024


@pytest.fixture
def server(make_server: MakeServer) -> TestServer:
    return make_server("first")


@pytest.fixture
def desk(server: TestServer, tmp_path: Path) -> Workspace:
    workspace = Workspace.find(make_project(tmp_path / "here", [server]))
    workspace.prepare()
    return workspace


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is asked, and the bytes of each question."""
    found: list[tuple[str, int]] = []
    make: Callable[..., bytes] = agent_client.request_line

    def measure(config: Any, operation: str, *rest: Any) -> bytes:
        line = make(config, operation, *rest)
        found.append((operation, len(line)))
        return line

    monkeypatch.setattr(agent_client, "request_line", measure)
    return found


def multiply(desk: Workspace, server: TestServer, job: Job, count: int) -> list[str]:
    """Make so many jobs more that have ended as this one did, there and here, as files."""
    ids = [f"20261121-{number:06d}-{secrets.token_hex(16)}" for number in range(count)]
    model, record = remote_folder(server, job.id), format_record(job).decode()
    texts = {name: (model / name).read_text() for name in ("spec.json", "started.json", "ended.json")}
    for number, job_id in enumerate(ids):
        there, here = remote_folder(server, job_id), desk.config.local.job(job_id)
        there.mkdir()
        for name, text in texts.items():
            (there / name).write_text(text.replace(job.id, job_id))
        here.mkdir()
        (here / "job.yaml").write_text(record.replace(job.id, job_id).replace(f"key: {job.key}", f"key: {10 + number}"))
    return ids


def ended(desk: Workspace) -> Job:
    job = desk.start("first", "exit 3", sync=False)
    job.wait(300)
    desk.pull_logs(by_id(job.id))
    return job.job


@pytest.mark.slow
@pytest.mark.row(177)
def test_many_ended_jobs_cost_few_bytes_and_a_new_one_is_found(
    desk: Workspace, server: TestServer, sent: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLED_SECONDS", -60.0)
    multiply(desk, server, ended(desk), MANY)
    desk.list_jobs()
    sent.clear()
    assert desk.list_jobs().jobs == ()
    assert [operation for operation, _ in sent] == ["status"]
    assert sent[0][1] < FEW_BYTES
    record_figure(f"bytes that a question about jobs sends with {MANY:,} that have ended", sent[0][1])
    other = Workspace.find(make_project(tmp_path / "other", [server]))
    job = other.start("first", "sleep 600", sync=False)
    sent.clear()
    assert [each.id for each in desk.list_jobs().jobs] == [job.id]
    assert [operation for operation, _ in sent] == ["status", "status"]
    assert sum(size for _, size in sent) < 2 * FEW_BYTES
    sent.clear()
    assert [each.id for each in desk.list_jobs().jobs] == [job.id]
    assert len(sent) == 1
    job.kill(grace=0)


@pytest.mark.slow
@pytest.mark.row(177)
def test_ends_that_the_server_has_no_more_are_noted_once_and_taken_back_when_they_are_found(
    desk: Workspace, server: TestServer, tmp_path: Path
) -> None:
    ids = multiply(desk, server, ended(desk), 100)
    desk.list_jobs()
    aside = remote_folder(server, ids[0]).rename(tmp_path / "aside")
    shutil.rmtree(remote_folder(server, ids[1]))
    desk.list_jobs()
    known = Registry(desk.config.local.jobs).find(ids[:3])
    assert [known[job_id].cleaned for job_id in ids[:3]] == [True, True, False]
    assert {each.state for each in known.values()} == {JobState.FAILED}
    aside.rename(remote_folder(server, ids[0]))
    desk.list_jobs()
    assert not Registry(desk.config.local.jobs).find(ids[:1])[ids[0]].cleaned
    running = begin(desk, "first", "exec sleep 600")
    assert [job.id for job in desk.list_jobs().jobs] == [running.id]
    running.kill(grace=0)


@pytest.mark.slow
@pytest.mark.row(177)
def test_an_empty_folder_in_the_place_of_the_jobs_says_nothing_of_ended_ones(
    desk: Workspace, server: TestServer
) -> None:
    ids = multiply(desk, server, ended(desk), 100)
    running = begin_and_run(desk, server, "exec sleep 600")
    jobs = server.home / "project" / ".jobs"
    aside = jobs.rename(jobs.with_name("aside"))
    jobs.mkdir(mode=0o700)
    assert desk.list_jobs().jobs[0].state is JobState.UNREACHABLE
    assert not any(job.cleaned for job in Registry(desk.config.local.jobs).find(ids).values())
    jobs.rmdir()
    aside.rename(jobs)
    assert [(job.id, job.state) for job in desk.list_jobs().jobs] == [(running.id, JobState.RUNNING)]
    running.kill(grace=0)


@pytest.mark.row(177)
def test_a_damaged_record_among_many_is_written_again(desk: Workspace, server: TestServer) -> None:
    ids = multiply(desk, server, ended(desk), 100)
    desk.config.local.job(ids[5]).joinpath("job.yaml").write_text("")
    desk.list_jobs()
    assert Registry(desk.config.local.jobs).find(ids[5:6])[ids[5]].state is JobState.FAILED


def test_sums_tell_whether_two_sides_know_the_same() -> None:
    ids = [f"20261121-053000-{number:032x}" for number in range(1000)]
    ours = fingerprints(ids)
    assert is_fingerprints(ours)
    assert ours == fingerprints(reversed(ids))
    assert unlike(ours, ours) == set()
    for missing in range(0, 1000, 37):
        assert len(unlike(ours, fingerprints(ids[:missing] + ids[missing + 1 :]))) == 1
    assert len(unlike(ours, fingerprints([]))) > BUCKETS / 2
    others: tuple[object, ...] = (None, "", ours[1:], f"{ours[1:]}g", [])
    assert not any(is_fingerprints(each) for each in others)
