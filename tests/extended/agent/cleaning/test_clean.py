"""Cleaning a server: what has ended goes, whatever is in use stays, and how a job ended is not forgotten."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.cleaning.leftovers import LeftoverScan
from remote_tool.agent.cleaning.removed_jobs import MOST
from remote_tool.agent.requests import Folders
from tests.extended.agent.conftest import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extended.agent.conftest import PretendServer


def clean(server: PretendServer, *ids: str, **fields: Any) -> dict[str, Any]:
    return server.call("clean", ids=list(ids), **{"dry_run": False, **fields})


def items(answer: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {each["what"]: (each["count"], each["goes"]) for each in answer["items"]}


def ended(server: PretendServer, command: str = "exit 3", **fields: Any) -> str:
    job_id = server.start(command, **fields)
    server.wait(job_id)
    supervisor = server.record(job_id, "started")["supervisor"]["pid"]
    wait_until(lambda: not os.path.exists(f"/proc/{supervisor}"), "the end of the supervisor")  # noqa: PTH110
    return job_id


@pytest.mark.row(173)
def test_a_job_that_has_ended_goes_and_how_it_ended_is_remembered(server: PretendServer) -> None:
    failed, other = ended(server), ended(server, "true")
    planned = clean(server, failed, dry_run=True)
    assert (planned["removed"], items(planned)["jobs"]) == ([failed], (2, 1))
    assert (server.jobs / failed).exists()
    answer = clean(server, failed)
    assert (answer["removed"], answer["kept"], answer["more"]) == ([failed], [], False)
    assert items(answer)["jobs"] == (2, 1)
    assert sorted(path.name for path in server.jobs.iterdir() if not path.name.startswith(".")) == [other]
    assert not list(server.jobs.glob(".removed-*"))
    told = server.call("status", ids=None, known=[failed])
    assert [(each["id"], each["state"], each["exit_code"]) for each in told["removed"]] == [(failed, "failed", 3)]
    assert clean(server, failed)["gone"] == [failed]


@pytest.mark.row(173)
def test_running_jobs_and_jobs_with_processes_are_kept(server: PretendServer) -> None:
    running = server.start("exec sleep 600")
    lost = server.start("exec sleep 600")
    os.kill(server.supervisor(lost), signal.SIGKILL)
    wait_until(lambda: server.status(lost)["state"] == "lost", "a lost job")
    answer = clean(server, running, lost)
    assert {each["id"]: each["why"] for each in answer["kept"]} == {
        running: "it is running",
        lost: "some of its processes are still running",
    }
    assert (server.jobs / running).exists()
    assert (server.jobs / lost).exists()
    for pid in server.members(lost):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not server.members(lost), "the end of what was left")
    assert clean(server, lost)["removed"] == [lost]
    assert [each["state"] for each in server.call("status", ids=None, known=[lost])["removed"]] == ["lost"]


@pytest.mark.row(173)
def test_a_job_whose_supervisor_still_writes_its_end_stays(server: PretendServer) -> None:
    job_id = ended(server)
    with (server.jobs / job_id / "reserve").open("ab") as reserve:
        fcntl.flock(reserve, fcntl.LOCK_EX)
        assert clean(server, job_id)["kept"] == [{"id": job_id, "why": "its supervisor is still running"}]
    assert clean(server, job_id)["removed"] == [job_id]


@pytest.mark.row(174)
def test_no_link_is_followed_and_nothing_outside_is_touched(server: PretendServer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep me")
    job_id = ended(server)
    (server.jobs / job_id / "ranks" / "0").symlink_to(outside)
    linked = f"20261121-053000-{'a' * 32}"
    (server.jobs / linked).symlink_to(outside)
    (server.project / "data").symlink_to(outside)
    (outside / ".remote-tool-partial").mkdir()
    (server.scripts / "partial").symlink_to(outside)
    answer = clean(server, job_id, linked, "../../outside", "..")
    assert (answer["removed"], answer["gone"]) == ([job_id], [linked])
    assert (outside / "precious").read_text() == "keep me"
    assert (outside / ".remote-tool-partial").exists(), "no sync has sent anything through this link"
    assert not os.path.lexists(server.scripts / "partial")


@pytest.mark.row(174)
@pytest.mark.slow
def test_a_clean_that_is_killed_anywhere_is_gone_on_with_by_the_next(server: PretendServer) -> None:
    """It sets aside before it removes, so nobody ever sees half a job."""
    for pause in (0.0, 0.01, 0.02, 0.03, 0.05):
        ids = [ended(server) for _ in range(3)]
        for job_id in ids:
            for number in range(300):
                (server.jobs / job_id / "ranks" / str(number)).mkdir()
        with server.open("clean", ids=ids, dry_run=False) as call:
            time.sleep(pause)
            call.process.kill()
            call.process.wait()
        for job_id in ids:
            if (server.jobs / job_id).exists():
                assert server.status(job_id)["state"] == "failed"
            else:
                assert server.call("status", ids=None, known=[job_id])["removed"]
        assert clean(server, *ids)["more"] is False
        assert not [path for path in server.jobs.iterdir() if path.name.startswith(".removed-") or path.name in ids]


@pytest.mark.row(174)
@pytest.mark.slow
def test_cleans_and_starts_at_the_same_moment_lose_and_repeat_nothing(server: PretendServer) -> None:
    ids = [ended(server) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        cleans = [pool.submit(clean, server, *ids) for _ in range(4)]
        starts = [pool.submit(server.start, "echo here; sleep 0.2; exit 4") for _ in range(4)]
        answers = [each.result() for each in cleans]
        started = [each.result() for each in starts]
    assert sorted(name for each in answers for name in each["removed"]) == sorted(ids)
    assert [each.get("error") for each in answers] == [None] * 4
    assert {record["exit_code"] for record in server.wait(*started).values()} == {4}
    assert len(server.call("status", ids=[], known=ids)["removed"]) == 4


@pytest.mark.row(174)
def test_a_start_that_is_asked_for_again_after_its_job_was_cleaned_away_starts_nothing(server: PretendServer) -> None:
    job = server.new_job("echo ran >> ran")
    server.call("start", jobs=[job])
    server.wait(job["id"])
    wait_until(lambda: clean(server, job["id"])["removed"] == [job["id"]], "a clean")
    (entry,) = server.call("start", jobs=[job], again=True)["jobs"]
    assert "it has run, and was cleaned away" in entry["error"]
    assert entry["begun"] is True
    assert (server.project / "ran").read_text() == "ran\n"


def test_the_memory_of_cleaned_jobs_is_bounded(server: PretendServer) -> None:
    job_id = ended(server)
    older = "".join(f"20261121-053000-{number:032x} succeeded 0 - 1.000\n" for number in range(MOST))
    (server.jobs / ".removed").write_text(older + "half a li")
    clean(server, job_id)
    lines = (server.jobs / ".removed").read_text().splitlines()
    assert len(lines) == MOST
    assert lines[-1].startswith(f"{job_id} failed 3 - ")
    assert (server.jobs / ".removed").stat().st_size < 512 * 1024


@pytest.mark.row(174)
def test_an_older_version_goes_unless_a_process_runs_from_it(server: PretendServer) -> None:
    for name in ("supervisor-unused", "supervisor-used"):
        shutil.copytree(server.entry.parent, server.scripts / name)
    current, server.entry = server.entry, server.scripts / "supervisor-used" / "run_control.py"
    job_id = server.start("exec sleep 600")
    server.entry = current
    assert items(clean(server))["old supervisors"] == (2, 1)
    assert [path.name for path in server.scripts.glob("supervisor-*")] == ["supervisor-used"]
    server.stop(job_id, signal="SIGKILL")
    wait_until(lambda: items(clean(server))["old supervisors"][0] == 0, "the end of the old version")


@pytest.mark.row(174)
def test_the_version_that_cleans_is_not_an_old_one(server: PretendServer) -> None:
    installed = server.scripts / server.entry.parent.name
    shutil.copytree(server.entry.parent, installed)
    server.entry = installed / "run_control.py"
    assert items(clean(server))["old supervisors"] == (0, 0)
    assert server.entry.exists()


@pytest.mark.row(174)
def test_old_unused_versions_are_removed_automatically(server: PretendServer) -> None:
    installed = server.scripts / server.entry.parent.name
    shutil.copytree(server.entry.parent, installed)
    server.entry = installed / "run_control.py"
    for name, days in (("supervisor-week", 8), ("supervisor-lately", 1)):
        shutil.copytree(installed, server.scripts / name)
        then = time.time() - days * 86400
        os.utime(server.scripts / name, (then, then))
    server.wait(server.start("true"))
    wait_until(lambda: not (server.scripts / "supervisor-week").exists(), "the end of an old version")
    assert (server.scripts / "supervisor-lately").exists()


@pytest.mark.row(174)
def test_half_an_environment_goes_unless_a_setup_is_at_work(server: PretendServer) -> None:
    half = server.scripts / "environment"
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "python").write_text("#!/bin/sh\n")
    (server.scripts / "lock").touch()
    with (server.scripts / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = clean(server)
        assert items(busy)["half-made environments"] == (1, 0)
        assert "a setup is running" in json.dumps(busy)
    with subprocess.Popen([sys.executable, "-c", "input()", str(half)], stdin=subprocess.PIPE) as user:
        assert items(clean(server))["half-made environments"] == (1, 0)
        user.communicate(b"\n")
    assert items(clean(server))["half-made environments"] == (1, 1)
    assert not half.exists()
    half.mkdir()
    server.activate(prefix=str(half))
    assert items(clean(server))["half-made environments"] == (0, 0)
    assert half.exists()


@pytest.mark.row(174)
def test_partial_syncs_go_also_behind_a_link_that_files_were_sent_through(
    server: PretendServer, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "deep" / ".remote-tool-partial").mkdir(parents=True)
    (scratch / "deep" / "output.pt").write_text("of a job")
    (server.project / "data").symlink_to(scratch)
    (server.project / "own" / ".remote-tool-partial").mkdir(parents=True)
    (server.project / "own" / ".remote-tool-partial" / "half").write_bytes(b"x" * 100_000)
    (server.scripts / "arriving").mkdir()
    (server.scripts / "sent").write_bytes(b"5 1 data/deep/input.txt\0")
    (server.scripts / "sync-lock").touch()
    with (server.scripts / "sync-lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert items(clean(server))["partial syncs"] == (3, 0)
    assert items(clean(server))["partial syncs"] == (3, 3)
    assert [path.name for path in (scratch / "deep").iterdir()] == ["output.pt"]
    assert not (server.project / "own" / ".remote-tool-partial").exists()
    assert not (server.scripts / "arriving").exists()


@pytest.mark.row(174)
@pytest.mark.parametrize(("seconds", "gone"), [(60, True), (-1, False)])
def test_files_that_could_not_be_removed_are_not_reported_as_removed(
    tmp_path: Path, seconds: int, *, gone: bool
) -> None:
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "file").write_bytes(b"x" * 10_000)
    scan = LeftoverScan(Folders("", "", ""), None, dry_run=False, deadline=time.monotonic() + seconds)
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        told = scan.take("environments", [(parent, folder.name)])
    finally:
        os.close(parent)
    assert folder.exists() is not gone
    assert (told["goes"], told["frees"] > 0) == (int(gone), gone)
    assert told["why"] == ("" if gone else "some of it could not be removed")


def sent(server: PretendServer, *names: str) -> None:
    records = []
    for name in names:
        path = server.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sent")
        records.append(b"4 %d %b\0" % (int(path.stat().st_mtime), name.encode()))
    folders = {name.rpartition("/")[0] for name in names if "/" in name}
    records += [b"0 0 %b/\0" % name.encode() for name in folders]
    (server.scripts / "sent").write_bytes(b"".join(records))


@pytest.mark.row(175)
def test_everything_of_ours_is_removed_and_files_of_jobs_stay(server: PretendServer) -> None:
    sent(server, "train.py", "src/model.py", "src/edited.py")
    (server.project / "src" / "edited.py").write_text("changed there")
    job_id = ended(server, "echo weights > src/model.pt")
    ports = server.home / ".cache" / "remote-tool" / "ports"
    ports.mkdir(parents=True)
    (ports / "host-20000").touch()
    shutil.copytree(server.entry.parent, server.scripts / server.entry.parent.name)
    server.entry = server.scripts / server.entry.parent.name / "run_control.py"
    planned = clean(server, everything=True, dry_run=True)
    assert items(planned)["sent files"] == (3, 2)
    assert (server.jobs / job_id).exists()
    answer = clean(server, everything=True)
    assert "error" not in answer, answer
    freed, planned_bytes = (sum(each["frees"] for each in told["items"]) for told in (answer, planned))
    assert freed <= planned_bytes, "nothing is counted twice"
    left = sorted(str(path.relative_to(server.home)) for path in server.home.rglob("*") if path.is_file())
    assert left == [f"{server.project.name}/src/edited.py", f"{server.project.name}/src/model.pt"]
    assert not server.scripts.exists()
    assert not server.jobs.exists()


@pytest.mark.row(175)
def test_clean_all_removes_nothing_while_a_job_runs(server: PretendServer) -> None:
    sent(server, "train.py")
    job_id = server.start("exec sleep 600")
    before = sorted(str(path) for path in server.home.rglob("*"))
    for dry_run in (True, False):
        answer = clean(server, everything=True, dry_run=dry_run)
        assert answer["error"] == f"Cannot remove everything: job {job_id}: it is running"
    assert sorted(str(path) for path in server.home.rglob("*")) == before
    server.stop(job_id, signal="SIGKILL")


@pytest.mark.row(175)
def test_clean_all_removes_nothing_while_a_job_with_an_unreadable_record_runs(server: PretendServer) -> None:
    job_id = server.start("exec sleep 600")
    spec = server.jobs / job_id / "spec.json"
    text = spec.read_text()
    spec.write_text(text.replace('"schema": 1', '"schema": 99').replace('"schema":1', '"schema":99'))
    assert spec.read_text() != text
    answer = clean(server, everything=True)
    assert answer["error"].startswith(f"Cannot remove everything: job {job_id}: it is running, and its record"), answer
    spec.write_text(text)
    server.stop(job_id, signal="SIGKILL")


@pytest.mark.row(175)
def test_a_start_and_the_removal_of_everything_never_both_go_on(server: PretendServer) -> None:
    server.wait(server.start("true"))
    jobs = os.open(server.jobs, os.O_RDONLY)
    try:
        fcntl.flock(jobs, fcntl.LOCK_SH)
        assert "a job is starting" in clean(server, everything=True)["error"]
        fcntl.flock(jobs, fcntl.LOCK_EX)
        refused = server.call("start", jobs=[server.new_job("touch ran")])
        assert "is being removed from this server" in refused["error"]
        assert refused["begun"] is False
    finally:
        os.close(jobs)
    (server.scripts / "activation.json").rename(server.scripts / "elsewhere")
    assert server.call("start", jobs=[server.new_job("touch ran")])["begun"] is False
    assert not (server.project / "ran").exists()


@pytest.mark.row(175)
def test_a_conda_that_was_installed_goes_unless_it_has_other_environments(server: PretendServer) -> None:
    real = server.home / ".miniconda3.20261121053000.4711"
    (real / "bin").mkdir(parents=True)
    (real / "bin" / "conda").write_text("#!/bin/sh\n")
    (server.home / "miniconda3").symlink_to(real.name)
    (server.home / "miniforge3" / "bin").mkdir(parents=True)
    notes = server.home / ".conda" / "environments.txt"
    notes.parent.mkdir()
    other = server.home / "other"
    other.mkdir()
    notes.write_text(f"{server.scripts}/environment\n{other}\n")
    told = clean(server, everything=True, dry_run=True)
    assert items(told)["conda"] == (2, 0)
    assert "it has other environments" in json.dumps(told)
    other.rmdir()
    clean(server, everything=True)
    assert sorted(path.name for path in server.home.iterdir()) == ["miniforge3"]


def test_a_start_removes_old_jobs_that_its_client_names_and_says_so(server: PretendServer) -> None:
    job_id = ended(server)
    running = server.start("exec sleep 600")
    answer = server.call("start", jobs=[server.new_job("true")], clean=[job_id, running])
    assert answer["cleaned"]["removed"] == [job_id]
    assert [each["id"] for each in answer["cleaned"]["kept"]] == [running]
    assert "free" not in answer
    low = server.call("start", jobs=[server.new_job("true")], min_free=[2**62, 100])
    assert 0 < low["free"] < low["total"]
    wait_until(partial(_has_ended, server), "all ends")


def _has_ended(server: PretendServer) -> bool:
    return not (server.jobs / server.ids[-1]).exists() or (server.jobs / server.ids[-1] / "ended.json").exists()
