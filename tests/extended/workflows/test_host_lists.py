"""Work on hosts of a list, with nothing configured but what ssh knows; later commands find their jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, JobState, LaunchRequest, StartRequest, Workspace
from remote_tool.errors import ConnectError, UsageError
from tests.extended.workflows.jobs.test_jobs import until
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from remote_tool.workflows.jobs.follow import Chunk
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

RANKS = """
import json, os
print(json.dumps({name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")}))
"""


def tell_ssh(home: Path, hosts: dict[str, TestServer]) -> None:
    """Write a ``~/.ssh/config`` in which addresses lead to servers on loopback."""
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    (home / ".ssh" / "config").write_text(
        "".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.username}\n"
            f"  IdentityFile {server.key}\n"
            for name, server in hosts.items()
        )
    )


@pytest.fixture
def listing(shared_servers: tuple[TestServer, TestServer], own_home: Path) -> tuple[TestServer, TestServer]:
    """The shared servers as 10.0.0.1 and 10.0.0.2."""
    tell_ssh(own_home, dict(zip(("10.0.0.1", "10.0.0.2"), shared_servers, strict=True)))
    return shared_servers


@pytest.fixture
def bare(shared_project: Path, listing: Iterable[TestServer], tmp_path: Path) -> Workspace:  # noqa: ARG001
    """The project that is on the shared servers, with no server configured."""
    return Workspace.find(make_project(tmp_path / "project", ()))


def test_jobs_on_listed_hosts_are_found_by_the_commands_that_come_later(bare: Workspace) -> None:
    started = bare.with_hosts("10.0.0.1:2,10.0.0.2:2").start_jobs(StartRequest("echo on; sleep 1000", sync=False)).jobs
    assert [job.server for job in started] == ["10.0.0.1", "10.0.0.2"]
    later = Workspace.find(bare.root)
    assert [(job.server, job.state) for job in later.list_jobs().jobs] == [
        ("10.0.0.1", JobState.RUNNING),
        ("10.0.0.2", JobState.RUNNING),
    ]

    def is_home() -> bool:
        later.pull_logs()
        log = later.config.local.jobs / started[1].id / "job.out"
        return log.exists() and log.read_text() == "on\n"

    until(is_home)
    killed = later.stop_jobs(JobSelection(jobs=tuple(job.id for job in started)), signal="SIGKILL").jobs
    assert [job.state for job in killed] == [JobState.KILLED] * 2
    assert later.wait_jobs(JobSelection(jobs=(started[0].id,), servers=("10.0.0.1",))).jobs == killed[:1]


def test_logs_of_ended_jobs_come_home_from_hosts_of_earlier_lists(bare: Workspace) -> None:
    (job,) = bare.with_hosts("10.0.0.2").start_jobs(StartRequest("echo done", sync=False)).jobs
    later = Workspace.find(bare.root)
    assert later.wait_jobs(JobSelection(jobs=(job.id,))).jobs[0].state is JobState.SUCCEEDED
    assert later.pull_logs().exit_code == 0
    assert (later.config.local.jobs / job.id / "job.out").read_text() == "done\n"


def test_clean_keeps_jobs_of_hosts_of_earlier_lists_that_it_does_not_ask(bare: Workspace) -> None:
    (job,) = bare.with_hosts("10.0.0.2").start_jobs(StartRequest("echo done", sync=False)).jobs
    later = Workspace.find(bare.root)
    later.wait_jobs(JobSelection(jobs=(job.id,)))
    later.clean(later.survey())
    assert [each.id for each in Workspace.find(bare.root).known_jobs([job.id])] == [job.id]


def test_files_of_jobs_come_home_from_hosts_of_earlier_lists(bare: Workspace) -> None:
    (job,) = bare.with_hosts("10.0.0.1").start_jobs(StartRequest("echo 1 > kept.txt", sync=False)).jobs
    later = Workspace.find(bare.root)
    later.wait_jobs(JobSelection(jobs=(job.id,)))
    assert not later.pull_jobs(JobSelection(jobs=(job.id,)), ["kept.txt"]).errors
    assert [file.name for file in (later.config.local.jobs / job.id).rglob("kept.txt")] == ["kept.txt"]


def test_hosts_of_earlier_lists_where_nothing_runs_are_left_alone(bare: Workspace) -> None:
    """They may be gone, and nobody wants to wait for them."""
    with pytest.raises(ConnectError):
        bare.with_hosts("127.0.0.9").run("true")
    later = Workspace.find(bare.root)
    assert later.list_jobs() == later.wait_jobs(JobSelection())
    assert later.list_jobs().exit_code == 0
    with pytest.raises(UsageError, match="No servers in"):
        later.run("true")
    with pytest.raises(ConnectError):
        later.run("true", ["127.0.0.9"])


def test_orphans_are_searched_on_hosts_of_earlier_lists_that_had_jobs(
    shared_project: Path,  # noqa: ARG001 - it is what prepares them
    listing: tuple[TestServer, TestServer],
    tmp_path: Path,
) -> None:
    workspace = Workspace.find(make_project(tmp_path / "project", listing[:1]))
    workspace.with_hosts("10.0.0.2,127.0.0.9").start("10.0.0.2", "true", sync=False).wait()
    later = Workspace.find(workspace.root)
    assert list(later.find_strays().places) == ["first", "10.0.0.2"]
    assert list(later.find_strays(["10.0.0.2"]).places) == list(later.with_hosts("10.0.0.2").find_strays().places)


def test_a_configured_host_of_a_list_is_the_configured_server(
    shared_project: Path,  # noqa: ARG001 - it is what prepares them
    listing: tuple[TestServer, TestServer],
    tmp_path: Path,
) -> None:
    workspace = Workspace.find(make_project(tmp_path / "project", listing))
    assert list(workspace.with_hosts("second:1,10.0.0.1").run("true").values) == ["second", "10.0.0.1"]
    assert list(Workspace.find(workspace.root).run("true").values) == ["first", "second"]


def test_a_hostfile_prepares_hosts_that_are_configured_nowhere(
    make_server: MakeServer, own_home: Path, tmp_path: Path
) -> None:
    hosts = {"gpu-a": make_server("first"), "gpu-b": make_server("second")}
    tell_ssh(own_home, hosts)
    root = make_project(tmp_path / "fresh", ())
    (root / "hosts").write_text("# the lab\ngpu-b slots=2\n\ngpu-a slots=2 max_slots=4\n")
    workspace = Workspace.find(root).with_hostfile(root / "hosts")
    assert list(workspace.prepare().values) == ["gpu-b", "gpu-a"]
    assert list(workspace.rsync().values) == ["gpu-b", "gpu-a"]
    assert all((server.home / "project" / "hello.py").is_file() for server in hosts.values())
    assert Workspace.find(root).start("gpu-a", "python hello.py").wait() is JobState.SUCCEEDED


@pytest.mark.row(96)
@pytest.mark.slow
def test_torchrun_has_as_many_processes_on_each_host_as_the_list_says(bare: Workspace) -> None:
    (bare.root / "ranks.py").write_text(RANKS)
    workspace = bare.with_hosts("10.0.0.2:2,10.0.0.1:1")
    jobs = workspace.launch(LaunchRequest("ranks.py")).jobs
    lines: list[bytes] = []

    def take(chunk: Chunk) -> None:
        lines.extend(chunk.data.splitlines())

    answer = Workspace.find(bare.root).follow_jobs(JobSelection(jobs=tuple(job.id for job in jobs)), take)
    assert answer.exit_code == 0, lines
    ranks = sorted((json.loads(line) for line in lines if line.startswith(b"{")), key=lambda each: int(each["RANK"]))
    assert [(each["RANK"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in ranks] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
        ("2", "0", "1"),
    ]
    assert {each["WORLD_SIZE"] for each in ranks} == {"3"}
