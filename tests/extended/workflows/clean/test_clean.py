"""clean on real servers: what has ended goes there and here, and nobody loses what he still needs."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, JobState, StartRequest, Workspace
from remote_tool.errors import UsageError
from remote_tool.jobs.job import Job, JobSpec, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.workflows.clean.request import CleanAnswer, CleanRequest
from tests.extended.workflows.jobs.test_jobs import begin, begin_and_run, by_id, remote_folder, until
from tests.extended.workflows.jobs.test_lost_jobs import renamed
from tests.program import remote_tool
from tests.project import make_project, write_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.sshd import TestServer


@pytest.fixture
def server(make_server: MakeServer) -> TestServer:
    return make_server("first")


@pytest.fixture
def desk(server: TestServer, tmp_path: Path) -> Workspace:
    workspace = Workspace.find(make_project(tmp_path / "here", [server]))
    workspace.prepare()
    return workspace


def ended(desk: Workspace, command: str = "exit 3", **wishes: object) -> Job:
    job = desk.start("first", command, sync=False, **wishes)  # type: ignore[arg-type]
    job.wait(300)
    desk.pull_logs(by_id(job.id))
    # Its supervisor may need a moment after it has recorded the end.
    until(lambda: job.id not in desk.survey().kept)
    return job.job


def clean(desk: Workspace, request: CleanRequest | None = None) -> CleanAnswer:
    found = desk.clean(desk.survey(request))
    assert not found.errors, found.errors
    return found


def clean_until_gone(desk: Workspace, server: TestServer, job: Job) -> None:
    """The supervisor of a job may need a moment after it has recorded the end."""

    def is_gone() -> bool:
        clean(desk)
        return not remote_folder(server, job.id).exists()

    until(is_gone)


def listed(desk: Workspace) -> list[tuple[int, JobState]]:
    ran = remote_tool("job-list", "--stopped", "--json", cwd=desk.root)
    assert ran.returncode == 0, ran.stderr
    return [(each["key"], JobState(each["state"])) for each in json.loads(ran.stdout)["jobs"]]


@pytest.mark.row(173)
def test_ended_jobs_go_on_the_server_and_here_and_their_keys_are_not_given_again(
    desk: Workspace, server: TestServer
) -> None:
    first, second = ended(desk), ended(desk, "true")
    running = begin(desk, "first", "exec sleep 600")
    output = server.home / "project" / "checkpoint.pt"
    output.write_text("weights")
    planned = desk.survey()
    assert {item.what: item.goes for item in planned.items if item.count}["jobs"] == 2
    assert remote_folder(server, first.id).exists()
    done = desk.clean(planned)
    assert not done.errors
    assert [remote_folder(server, job.id).exists() for job in (first, second, running.job)] == [False, False, True]
    assert not desk.config.local.job(first.id).exists()
    assert listed(desk) == [(3, JobState.RUNNING)]
    assert output.read_text() == "weights"
    (desk.config.local.jobs / "last_key").unlink(missing_ok=True)
    running.kill(grace=0)
    clean_until_gone(desk, server, running.job)
    assert listed(desk) == []
    assert ended(desk).key == 4


@pytest.mark.row(173)
def test_older_and_keep_leave_the_newest(desk: Workspace) -> None:
    jobs = [ended(desk) for _ in range(3)]
    clean(desk, CleanRequest(older=3600))
    assert len(listed(desk)) == 3
    clean(desk, CleanRequest(keep=2))
    assert [key for key, _ in listed(desk)] == [job.key for job in jobs[1:]]


@pytest.mark.row(173)
def test_another_laptop_learns_how_a_job_ended_that_was_cleaned_away(
    desk: Workspace, server: TestServer, tmp_path: Path
) -> None:
    other = Workspace.find(make_project(tmp_path / "other", [server]))
    job = begin(desk, "first", "until test -e $HOME/go; do sleep 0.05; done; exit 5")
    assert other.list_jobs().jobs[0].state is JobState.RUNNING
    (server.home / "go").touch()
    assert job.wait(300) is JobState.FAILED
    clean_until_gone(desk, server, job.job)
    (known,) = other.list_jobs(by_id(job.id)).jobs
    assert (known.state, known.exit_code, known.reason) == (JobState.FAILED, 5, "its folder was removed by clean")
    assert other.wait_jobs(by_id(job.id)).program_exit_code == 5
    assert other.pull_logs().exit_code == 0
    clean(other)
    assert other.known_jobs([job.id]) == []


@pytest.mark.row(173)
def test_what_came_home_and_what_has_not_stays(desk: Workspace, server: TestServer) -> None:
    home = ended(desk, "echo 7 > model.pt", artifacts=["model.pt"])
    away = desk.start("first", "sleep 0.1; echo 8 > later.pt", sync=False, artifacts=["later.pt"])
    until((remote_folder(server, away.id) / "ended.json").exists)
    found = desk.survey()
    assert found.kept == {away.id: "artifacts have not been pulled"}
    desk.clean(found)
    assert not remote_folder(server, home.id).exists()
    assert remote_folder(server, away.id).exists()
    artifact = desk.config.local.job(home.id) / "artifacts" / "model.pt"
    assert artifact.read_text() == "7\n"
    assert [key for key, _ in listed(desk)] == [home.key, away.job.key]
    assert (server.home / "project" / "model.pt").exists()
    clean(desk, CleanRequest(artifacts=True))
    assert not artifact.exists()
    assert (server.home / "project" / "model.pt").read_text() == "7\n"


@pytest.mark.row(173)
def test_a_server_that_does_not_answer_keeps_its_jobs_here(desk: Workspace, server: TestServer) -> None:
    job = ended(desk)
    server.stop()
    found = desk.clean(desk.survey())
    assert list(found.errors) == ["first"]
    assert desk.select_local(by_id(job.id))
    server.start()
    clean(desk)
    assert not desk.known_jobs([job.id])


@pytest.mark.row(173)
@pytest.mark.parametrize("everything", [False, True])
def test_a_server_whose_project_is_not_mounted_keeps_its_jobs_here(
    desk: Workspace, server: TestServer, *, everything: bool
) -> None:
    job = ended(desk)
    with renamed(server.home / "project"):
        found = clean(desk, CleanRequest(all=everything))
        assert found.kept == {job.id: "first is not prepared; --job KEY removes its record here"}
    assert desk.known_jobs([job.id])
    assert "first" in (desk.root / ".remote" / "known_hosts").read_text()
    clean_until_gone(desk, server, job)
    assert not desk.known_jobs([job.id])


@pytest.mark.row(176)
def test_a_job_of_a_server_whose_project_is_gone_can_be_forgotten_by_its_key(
    desk: Workspace, server: TestServer
) -> None:
    job = ended(desk)
    with renamed(server.home / "project"):
        clean(desk, CleanRequest(jobs=(str(job.key),)))
    assert not desk.known_jobs([job.id])


@pytest.mark.row(173)
def test_jobs_of_a_server_that_left_the_configuration_go_here(desk: Workspace, make_server: MakeServer) -> None:
    job = ended(desk)
    other = make_server("second")
    write_configuration(desk.root, [other])
    later = Workspace.find(desk.root)
    assert later.select_local(by_id(job.id))
    found = later.clean(later.survey())
    assert not found.errors
    assert later.known_jobs([job.id]) == []


@pytest.mark.row(176)
def test_a_start_that_never_arrived_and_a_job_whose_folder_is_gone_for_good_can_be_forgotten(
    desk: Workspace,
) -> None:
    registry = Registry(desk.config.local.jobs)
    (never,) = registry.create([JobSpec(new_job_id(), "first", "true")])
    with pytest.raises(UsageError, match="may still be starting"):
        desk.survey(CleanRequest(jobs=(str(never.key),)))
    record = desk.config.local.job(never.id) / "job.yaml"
    text = record.read_text().splitlines(keepends=True)
    record.write_text("".join(f"created_at: {time.time() - 400}\n" if "created_at" in line else line for line in text))
    (gone,) = registry.create([JobSpec(new_job_id(), "rented", "true")])
    runs = begin(desk, "first", "exec sleep 600")
    with pytest.raises(UsageError, match=f"Job {runs.job.key} is running"):
        desk.survey(CleanRequest(jobs=(str(runs.job.key),)))
    ran = remote_tool("clean", str(never.key), "--job", str(gone.key), "--yes", cwd=desk.root)
    assert ran.returncode == 0, ran.stderr
    assert f"job {never.key} (starting) will be forgotten here: first does not have it" in ran.stderr
    assert f"job {gone.key} (starting) will be forgotten here: rented is not in the configuration" in ran.stderr
    assert listed(desk) == [(runs.job.key, JobState.RUNNING)]
    runs.kill(grace=0)


@pytest.mark.row(173)
def test_a_job_that_never_started_has_nothing_to_fetch_and_can_be_removed(server: TestServer, tmp_path: Path) -> None:
    desk = Workspace.find(make_project(tmp_path / "here", [server]))
    request = StartRequest("true", servers=("first",), artifacts=("out/*.pt",), sync=False)
    (job,) = desk.start_jobs(request, check=False).jobs
    assert job.state is JobState.FAILED
    desk.prepare()
    fetched = remote_tool("job-rsync", cwd=desk.root)
    assert fetched.returncode == 0, fetched.stderr
    assert "no such job" not in fetched.stderr
    clean(desk)
    assert listed(desk) == []


@pytest.mark.row(176)
def test_a_job_in_a_folder_that_was_replaced_can_be_forgotten(desk: Workspace, server: TestServer) -> None:
    job = begin_and_run(desk, server, "until test -e $HOME/go; do sleep 0.05; done")
    jobs = server.home / "project" / ".jobs"
    aside = jobs.rename(jobs.with_name("aside"))
    jobs.mkdir(mode=0o700)
    assert desk.list_jobs(by_id(job.id)).jobs[0].state is JobState.UNREACHABLE
    with pytest.raises(UsageError, match="Processes of job 1 are still running"):
        desk.survey(CleanRequest(jobs=("1",)))
    (server.home / "go").touch()
    until((aside / job.id / "ended.json").exists)
    clean(desk, CleanRequest(jobs=("1",)))
    assert listed(desk) == []


@pytest.mark.row(175)
def test_all_leaves_a_server_as_it_was_found(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("first")
    before = sorted(str(path) for path in server.home.rglob("*"))
    desk = Workspace.find(make_project(tmp_path / "here", [server]))
    desk.prepare()
    job = begin(desk, "first", "echo weights > result.pt; exec sleep 600")
    until((server.home / "project" / "result.pt").exists)
    refused = remote_tool("clean", "--all", "--server", "first", "--yes", cwd=desk.root)
    assert refused.returncode == 1
    assert "it is running" in refused.stderr
    job.kill(grace=0)
    until(lambda: remote_tool("clean", "--all", "--server", "first", "--yes", cwd=desk.root).returncode == 0)
    left = sorted(str(path) for path in server.home.rglob("*"))
    assert left == sorted([*before, f"{server.home}/project", f"{server.home}/project/result.pt"])
    assert desk.known_jobs([job.id]) == []
    assert "first" not in (desk.root / ".remote" / "known_hosts").read_text()
    again = remote_tool("clean", "--all", "--server", "first", "--yes", cwd=desk.root)
    assert again.returncode == 0
    assert sorted(str(path) for path in server.home.rglob("*")) == left


@pytest.mark.row(175)
def test_all_of_one_project_leaves_what_another_in_a_deeper_folder_needs(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server("first")
    desks = [
        Workspace.find(make_project(tmp_path / name.replace("/", "-"), [server], name=name))
        for name in ("one", "dev/two", "dev/three")
    ]
    for desk in desks:
        desk.prepare()
    ports = server.home / ".cache" / "remote-tool" / "ports"
    ports.mkdir(parents=True)
    for desk in desks[:2]:
        assert remote_tool("clean", "--all", "--server", "first", "--yes", cwd=desk.root).returncode == 0
        assert ports.exists()
    assert sorted(path.name for path in (server.home / "dev").iterdir()) == ["three"]
    assert remote_tool("clean", "--all", "--server", "first", "--yes", cwd=desks[2].root).returncode == 0
    assert not ports.exists()
    assert not (server.home / "dev").exists()


@pytest.mark.row(175)
def test_half_an_environment_is_found_without_a_python_of_ours(desk: Workspace, server: TestServer) -> None:
    scripts = server.home / "project" / ".remote-scripts"
    (scripts / "activation.json").unlink()
    (scripts / "python").unlink()
    (scripts / "environment" / "lib").mkdir(parents=True)
    assert {item.what: item.goes for item in clean(desk).items}["half-made environments"] == 1
    assert not (scripts / "environment").exists()


def test_nothing_goes_without_a_yes(desk: Workspace, server: TestServer) -> None:
    job = ended(desk)
    shown = remote_tool("clean", cwd=desk.root)
    assert shown.returncode == 1
    assert shown.stdout.splitlines()[0].split() == ["WHERE", "WHAT", "REMOVE", "KEEP"]
    assert shown.stderr == "nothing was removed; --yes removes it\n"
    dry = remote_tool("clean", "--dry-run", "--json", cwd=desk.root)
    assert dry.returncode == 0
    assert not json.loads(dry.stdout)["removed"]
    assert remote_folder(server, job.id).exists()
    asked = remote_tool("clean", "--all", cwd=desk.root)
    assert asked.returncode == 2
    assert "--all removes all that a server has, so name it" in asked.stderr
    assert remote_tool("clean", "--older", "soon", cwd=desk.root).returncode == 2


@pytest.mark.row(173)
def test_a_launch_of_which_a_job_runs_keeps_all_its_jobs(desk: Workspace) -> None:
    done = ended(desk)
    running = begin(desk, "first", "exec sleep 600")
    for job in (done, running.job):
        record = desk.config.local.job(job.id) / "job.yaml"
        record.write_text(record.read_text().replace('launch_id: ""', 'launch_id: "one"'))
    assert clean(desk).removable == {}
    running.kill(grace=0)
    assert desk.config.local.job(done.id).exists()


@pytest.mark.row(173)
def test_keep_jobs_removes_with_each_start_what_is_older_and_says_so(desk: Workspace, server: TestServer) -> None:
    write_configuration(desk.root, [server], keep_jobs=2)
    first, _ = (ended(Workspace.find(desk.root)) for _ in range(2))
    silent = remote_tool("job-run", "--server", "first", "--no-sync", "--cmd", "true", cwd=desk.root)
    assert "keep_jobs" not in silent.stderr
    until(lambda: all(state is not JobState.RUNNING for _, state in listed(desk)))
    told = remote_tool("job-run", "--server", "first", "--no-sync", "--cmd", "true", cwd=desk.root)
    assert "first: removed job 1 beyond the newest 2 (keep_jobs)" in told.stderr
    assert not remote_folder(server, first.id).exists()
    assert [key for key, _ in listed(desk)] == [2, 3, 4]


@pytest.mark.row(177)
def test_a_start_warns_of_a_disk_that_is_nearly_full_with_what_a_clean_would_free(
    desk: Workspace, server: TestServer
) -> None:
    ended(desk)
    start = ("job-run", "--server", "first", "--no-sync", "--cmd", "true")
    assert "free on the disk" not in remote_tool(*start, cwd=desk.root).stderr
    write_configuration(desk.root, [server], min_free="99%")
    told = remote_tool(*start, cwd=desk.root)
    assert told.returncode == 0
    assert "free on the disk of first; remote-tool clean --server first would free" in told.stderr
    assert "would free 0 B" not in told.stderr
    write_configuration(desk.root, [server], min_free="0MB")
    assert "free on the disk" not in remote_tool(*start, cwd=desk.root).stderr


@pytest.mark.row(177)
def test_prepare_and_rsync_warn_of_a_disk_that_is_nearly_full(desk: Workspace, server: TestServer) -> None:
    ended(desk)
    write_configuration(desk.root, [server], min_free="99%")
    (desk.root / "new.py").write_text("new")
    for command in ("rsync", "prepare"):
        told = remote_tool(command, cwd=desk.root)
        assert told.returncode == 0
        assert told.stderr.count("free on the disk of first; remote-tool clean --server first would free") == 1, (
            told.stderr
        )
    write_configuration(
        desk.root,
        [server],
        min_free="99%",
        data={"mine": {"from": str(desk.root / ".remote" / "logs"), "to": "~/mine"}},
    )
    told = remote_tool("data-sync", cwd=desk.root)
    assert told.stderr.count("free on the disk of first; remote-tool clean --server first would free") == 1
    assert "would free 0 B" not in told.stderr
    (desk.root / "new.py").write_text("newer")
    started = remote_tool("job-run", "--server", "first", "--cmd", "true", cwd=desk.root)
    assert started.stderr.count("free on the disk") == 1


@pytest.mark.slow
@pytest.mark.row(173, 315)
@pytest.mark.parametrize(
    "words",
    [
        ("helper-fan-out", "--cmd", "test -e $HOME/go || exit {shard}", "--total", "2", "--retries", "0"),
        ("helper-sweep", "--cmd", "test -e $HOME/go || exit {code}", "--grid", "code=0,1"),
    ],
    ids=lambda words: words[0],
)
def test_work_that_is_not_finished_keeps_the_jobs_that_say_what_is_done(
    desk: Workspace, words: tuple[str, ...]
) -> None:
    assert remote_tool(*words, "--per-server", "2", "--no-sync", cwd=desk.root).returncode == 0
    desk.wait_jobs(JobSelection(stopped=True), timeout=300)
    before = listed(desk)
    assert {state for _, state in before} == {JobState.SUCCEEDED, JobState.FAILED}
    clean(desk)
    assert listed(desk) == before
    (record,) = [*desk.config.local.fan_outs.glob("*"), *desk.config.local.sweeps.glob("*")]
    long_ago = time.time() - 31 * 86400
    for path in desk.config.local.jobs.glob("*/job.yaml"):
        path.write_text(re.sub(r"(?m)^(ended_at|seen_at): .*", rf"\1: {long_ago}", path.read_text()))
    os.utime(record, (long_ago, long_ago))
    clean(desk)
    assert listed(desk) == []
    # It says now what its jobs have done, and goes later.
    os.utime(record, (long_ago, long_ago))
    clean(desk)
    assert not record.exists()


@pytest.mark.row(176)
def test_a_job_that_its_server_cannot_read_just_now_is_not_forgotten(desk: Workspace, server: TestServer) -> None:
    job = begin(desk, "first", "exec sleep 600")
    spec = remote_folder(server, job.id) / "spec.json"
    text = spec.read_text()
    spec.write_text(text[:-10])
    with pytest.raises(UsageError, match="first cannot tell whether it has job 1"):
        desk.survey(CleanRequest(jobs=("1",)))
    spec.write_text(text)
    job.kill(grace=0)
