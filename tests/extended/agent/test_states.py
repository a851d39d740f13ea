from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.proc import processes
from remote_tool.agent.supervisor import command
from remote_tool.agent.supervisor.plan import Plan, RequestedJob

from .conftest import PretendServer, wait_for_text, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def change(path: Path, **fields: Any) -> None:
    """Rewrite fields of a record."""
    record = json.loads(path.read_text())
    for name, value in fields.items():
        record[name] = {**record[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(record))


def test_a_list_has_every_job_but_those_to_skip(server: PretendServer) -> None:
    running, ended = server.start("echo hello; exec sleep 60", tags=["sweep"]), server.start("exit 3")
    server.wait_for_output(running, "hello")
    server.wait(ended)
    answer = server.call("status", ids=None)
    states = {job["id"]: job["state"] for job in answer["jobs"]}
    assert states == {running: "running", ended: "failed"}
    first = next(job for job in answer["jobs"] if job["id"] == running)
    assert first["spec"]["tags"] == ["sweep"]
    assert first["sizes"] == {"out": 6, "err": 0}
    assert first["processes"] == [first["started"]["pid"]]
    assert answer["bad"] == []
    assert abs(answer["now"] - time.time()) < 60
    assert answer["identity"] == processes.place()
    assert [job["id"] for job in server.call("status", ids=None, skip=[ended])["jobs"]] == [running]


@pytest.mark.row(131)
def test_a_folder_of_jobs_has_an_id_that_stays_and_that_no_other_has(server: PretendServer) -> None:
    assert server.call("status")["folder_id"] == ""
    server.jobs.mkdir()
    assert server.call("status")["folder_id"] == ""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: server.call("start", jobs=[server.new_job("true")]), range(4)))
    ids = {answer["folder_id"] for answer in answers}
    assert ids == {server.call("status")["folder_id"]}
    assert len(ids.pop()) == 32
    assert not list(server.jobs.glob(".folder-id.*"))
    first = server.jobs.rename(server.jobs.with_name("first"))
    other = server.call("start", jobs=[server.new_job("true")])["folder_id"]
    assert other != (first / ".folder-id").read_text().strip()
    (server.jobs / ".folder-id").write_text("x" * 32)
    assert server.call("status")["folder_id"] == ""
    with server.open("follow", jobs=[{"id": "20260101-000000-" + "0" * 32}], wait=False) as call:
        assert call.rest()[0].header["folder_id"] == ""


def test_without_a_jobs_folder_there_are_no_jobs(server: PretendServer) -> None:
    answer = server.call("status", ids=None)
    assert (answer["jobs"], answer["bad"]) == ([], [])
    assert not server.jobs.exists()


@pytest.mark.row(106, 123)
def test_a_folder_that_cannot_be_read_is_named_and_hides_no_other(server: PretendServer) -> None:
    """No file is trusted."""
    good = server.start("exit 0")
    server.wait(good)
    names: dict[str, Callable[[Path], object]] = {
        "empty": lambda path: path.mkdir(),
        "plain-file": lambda path: path.write_text("x"),
        "link": lambda path: path.symlink_to("/etc"),
        "no spec here\x1b[2J": lambda path: path.mkdir(),
    }
    for name, make in names.items():
        make(server.jobs / name)
    (server.jobs / os.fsdecode(b"latin\xe9")).mkdir()
    for name, file, text in (
        ("torn", "ended.json", '{"schema": 1, "id"'),
        ("huge", "ended.json", "[" * 100_000),
        ("foreign", "spec.json", (server.jobs / good / "spec.json").read_text()),
        ("null", "started.json", "null"),
    ):
        subprocess.run(["cp", "-r", server.jobs / good, server.jobs / name], check=True)
        for record in (server.jobs / name).glob("*.json"):
            record.write_text(record.read_text().replace(good, name))
        (server.jobs / name / file).write_text(text)
    answer = server.call("status", ids=None)
    assert [job["id"] for job in answer["jobs"]] == [good]
    why = {bad["name"]: bad["why"] for bad in answer["bad"]}
    assert set(why) == {*names, "latin\\xe9", "torn", "huge", "foreign", "null"}
    assert "spec.json: is missing" in why["empty"]
    assert "ended.json: not valid JSON" in why["torn"]
    assert f"spec.json: is of job {good}" in why["foreign"]
    assert "no such job" in why["link"]


@pytest.mark.row(11, 123)
def test_a_record_cut_at_any_byte_never_looks_like_another_end(server: PretendServer) -> None:
    job_id = server.start("exit 0")
    server.wait(job_id)
    path = server.jobs / job_id / "ended.json"
    text = path.read_bytes()
    for end in range(0, len(text) - 1, 37):
        path.write_bytes(text[:end])
        answer = server.call("status", ids=[job_id])
        assert answer["jobs"] == []
        assert answer["bad"][0]["name"] == job_id


@pytest.mark.row(3)
def test_a_job_that_vanished_without_a_record_is_lost(server: PretendServer) -> None:
    job_id = server.start("exec sleep 60")
    os.kill(server.supervisor(job_id), signal.SIGKILL)
    os.kill(server.record(job_id, "started")["pid"], signal.SIGKILL)
    wait_until(lambda: not server.members(job_id))
    status = wait_until(lambda: (found := server.status(job_id))["state"] != "running" and found)
    assert (status["state"], status["reason"]) == ("lost", "its processes disappeared without a record")
    assert (status["alive"], status["processes"]) == (False, [])
    assert server.stop(job_id)["already"]


@pytest.mark.row(5)
@pytest.mark.parametrize("started", [True, False])
def test_after_a_reboot_a_job_is_lost(server: PretendServer, started: bool) -> None:
    """The same machine with another boot id; also a job that was just starting."""
    job_id = server.start("exec sleep 60")
    place = {"place": {"boot_id": "00000000-0000-0000-0000-000000000000"}}
    change(server.jobs / job_id / "spec.json", **place)
    original = (server.jobs / job_id / "started.json").read_bytes()
    if started:
        change(server.jobs / job_id / "started.json", **place)
    else:
        (server.jobs / job_id / "started.json").unlink()
    status = server.status(job_id)
    assert (status["state"], status["reason"], status["alive"]) == ("lost", "the server rebooted", False)
    assert server.stop(job_id, signal="SIGKILL")["state"] == "lost"
    (server.jobs / job_id / "started.json").write_bytes(original)
    assert len(server.members(job_id)) == 1, "no signal was sent"


@pytest.mark.row(30)
@pytest.mark.parametrize("machine", [{"hostname": "other"}, {"machine_id": "other"}])
def test_a_job_of_another_machine_that_shares_the_home_is_not_judged(
    server: PretendServer, machine: dict[str, str]
) -> None:
    job_id = server.start("exec sleep 60")
    other = {"boot_id": "00000000-0000-0000-0000-000000000000", **machine}
    change(server.jobs / job_id / "started.json", place=other)
    status = server.status(job_id)
    assert status["state"] == "elsewhere"
    assert "another machine" in status["reason"]
    answer = server.stop(job_id, signal="SIGKILL")
    assert "cannot be stopped from here" in answer["error"]
    assert not (server.jobs / job_id / "stop.json").exists()
    assert len(server.members(job_id)) == 1


@pytest.mark.row(30)
def test_a_renamed_machine_still_knows_its_jobs(server: PretendServer) -> None:
    """The same boot is the same machine, whatever it is called."""
    job_id = server.start("exec sleep 60")
    change(server.jobs / job_id / "started.json", place={"hostname": "before"})
    assert server.status(job_id)["state"] == "running"


@pytest.mark.row(5, 30)
def test_a_job_of_another_container_is_elsewhere_while_its_supervisor_lives_and_then_lost(
    server: PretendServer,
) -> None:
    """One kernel, two pid namespaces, one folder; the lock tells whether the other one lives."""
    job_id = server.start("exec sleep 60")
    started = server.record(job_id, "started")
    change(server.jobs / job_id / "started.json", place={"pid_namespace": "pid:[1]"})
    assert server.status(job_id)["state"] == "elsewhere"
    for name in ("supervisor", "command"):
        os.kill(started[name]["pid"], signal.SIGKILL)
    wait_until(lambda: processes.find_alive(started["supervisor"]) is None)
    status = server.status(job_id)
    assert (status["state"], status["reason"]) == ("lost", "the container that it ran in has ended")


@pytest.mark.row(5)
@pytest.mark.slow
def test_a_container_that_ends_leaves_its_jobs_lost(server: PretendServer, tmp_path: Path) -> None:
    """With a pid namespace whose first process is killed."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("making a pid namespace is not allowed here")
    job = server.new_job("exec sleep 60")
    request = {"nonce": "0" * 16, "op": "start", **server.folders, "jobs": [job]}
    (tmp_path / "line").write_text(json.dumps(request) + "\n")
    call = f"'{sys.executable}' -I -S '{server.entry}' < '{tmp_path}/line' > /dev/null; exec sleep 60"
    environment = {"PATH": os.environ["PATH"], "HOME": str(server.home), "REMOTE_TOOL_SUPERVISOR": "1"}
    with subprocess.Popen([*unshare, "sh", "-c", call], env=environment) as container:
        wait_until((server.jobs / job["id"] / "started.json").exists)
        assert server.status(job["id"])["state"] == "elsewhere"
        container.kill()
    status = wait_until(lambda: (found := server.status(job["id"]))["state"] != "elsewhere" and found)
    assert (status["state"], status["reason"]) == ("lost", "the container that it ran in has ended")


@pytest.mark.row(12)
def test_a_job_is_starting_while_its_starter_holds_the_lock_and_lost_after(server: PretendServer) -> None:
    """The folder is there, and nothing else yet."""
    job_id = server.start("exit 0")
    server.wait(job_id)
    folder = server.jobs / job_id
    for name in ("started.json", "ended.json"):
        (folder / name).unlink()
    with (folder / "reserve").open("w") as reserve:
        fcntl.flock(reserve, fcntl.LOCK_EX)
        assert server.status(job_id)["state"] == "starting"
    status = server.status(job_id)
    assert (status["state"], status["reason"]) == ("lost", "its start was interrupted, and its command never ran")
    again = server.call("start", jobs=[{**server.new_job("exit 0"), "id": job_id}])["jobs"][0]
    assert again["already"]


@pytest.mark.row(9, 12)
@pytest.mark.slow
def test_a_start_killed_at_any_time_ran_the_command_once_or_never(server: PretendServer) -> None:
    """Kill -9 of the starter, then the retry with the same id."""
    jobs = []
    for number in range(16):
        job = server.new_job(f"echo x >> ran{number}; exec sleep 60")
        jobs.append(job)
        with server.open("start", jobs=[job]) as call:
            time.sleep(0.03 + number * 0.003)
            call.process.kill()
    retried = {job["id"]: job for job in server.call("start", jobs=jobs)["jobs"]}
    for number, job in enumerate(jobs):
        state = wait_until(partial(_started_state, server, job["id"]), "the start")
        if state == "lost":
            assert retried[job["id"]]["already"]
            assert not (server.project / f"ran{number}").exists()
            assert server.members(job["id"]) == []
        else:
            assert state == "running"
            assert wait_for_text(server.project / f"ran{number}") == "x\n"
            assert len(server.members(job["id"])) == 1


def _started_state(server: PretendServer, job_id: str) -> str:
    state = str(server.status(job_id)["state"])
    return "" if state == "starting" else state


@pytest.mark.row(12)
@pytest.mark.slow
def test_a_supervisor_killed_before_its_command_may_run_starts_nothing(server: PretendServer) -> None:
    """The command waits until its start is on disk."""
    for _ in range(10):
        job = server.new_job("touch ran; exec sleep 60")
        with server.open("start", jobs=[job]) as call:
            folder = server.jobs / job["id"]
            while not folder.exists():
                pass
            for process in processes.ProcessSnapshot().processes.values():
                if process.pid != call.process.pid and _is_supervisor_of(process.pid, str(folder)):
                    # The command ends by itself when its supervisor has.
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            call.rest()
        if not (folder / "started.json").exists():
            assert server.status(job["id"])["state"] == "lost"
            assert server.members(job["id"]) == []
            assert not (server.project / "ran").exists()
            return
        server.stop(job["id"], signal="SIGKILL")
        (server.project / "ran").unlink(missing_ok=True)


@pytest.mark.row(12)
def test_a_command_whose_supervisor_dies_at_the_gate_never_runs(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for name in ("job.out", "job.err"):
        (tmp_path / name).touch()
    (tmp_path / "command").write_text(f"touch {tmp_path}/ran")
    environment = {b"PATH": os.fsencode(os.environ["PATH"])}
    request = RequestedJob({"id": "job", "nice": None}, "", environment)
    plan = Plan(request, folder, str(tmp_path), -1, True, str(tmp_path), environment)
    for word, ran in ((b"", False), (b"1", True)):
        gate, errors = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            command.become_command(plan, 0o077, gate, errors, None)
        os.close(gate[0])
        os.write(gate[1], word)
        os.close(gate[1])
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == (0 if ran else 127)
        assert (tmp_path / "ran").exists() == ran
        os.close(errors[0])
        os.close(errors[1])
    os.close(folder)


def _is_supervisor_of(pid: int, folder: str) -> bool:
    try:
        return any(str(path.readlink()) == folder for path in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
