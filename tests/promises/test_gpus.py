"""GPUs that jobs reserve: nobody else's are taken, and what is not known is not taken for free."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.processes import parents
from tests.project import make_project
from tests.promises.conftest import Desk, until
from tests.stand_in_gpus import gpu_line, process_line, put_nvidia_smi, remove_in_use, set_gpus
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FREE = gpu_line(0, load=0, used=1)


@pytest.fixture
def gpus(desk: Desk) -> Iterator[Path]:
    """The folder of the server's nvidia-smi, which reports one free GPU."""
    folder = desk.servers["first"].programs
    put_nvidia_smi(folder, FREE)
    # Questions follow each other in a sixth of this.
    desk.configure(idle_after=1)
    yield folder
    desk.tries("job-kill", "--server", "first", "--yes", "--signal", "SIGKILL")
    # The server is shared.
    remove_in_use(folder)


def has_said(desk: Desk, key: int, text: str) -> None:
    until(lambda: text in desk.job(key)["reason"], f"job {key} says {text!r}")


def test_a_list_of_processes_that_nvidia_smi_cannot_give_is_not_an_empty_one(desk: Desk, gpus: Path) -> None:
    fails = 'case "$1" in --query-compute-apps=*) echo Unknown Error; exit 1 ;; esac'
    put_nvidia_smi(gpus, FREE, otherwise=fails)
    desk.does("job-run", "--gpus", "1", "--cmd", "true")
    has_said(desk, 1, "nvidia-smi: Unknown Error")
    assert desk.job(1)["state"] == "queued"
    assert "its GPUs are unknown: nvidia-smi: Unknown Error" in desk.tries("gpus").stderr
    put_nvidia_smi(gpus, FREE)
    desk.waits_for(1, "succeeded")


def test_a_gpu_of_which_nvidia_smi_says_nothing_is_not_free(desk: Desk, gpus: Path) -> None:
    put_nvidia_smi(gpus, gpu_line(0, load="[N/A]", used="[N/A]"))
    desk.does("job-run", "--gpus", "1", "--cmd", "true")
    has_said(desk, 1, "GPU 0 may be in use: nvidia-smi tells neither its load nor its memory")
    (server,) = json.loads(desk.does("gpus", "--json"))["servers"]
    assert [gpu["state"] for gpu in server["gpus"]] == ["used"]
    put_nvidia_smi(gpus, FREE)
    desk.waits_for(1, "succeeded")


def test_a_job_that_wants_a_gpu_which_has_just_come_back_is_not_refused(desk: Desk, gpus: Path) -> None:
    desk.does("job-run", "--gpus", "1", "--follow", "--cmd", "true")
    # What nvidia-smi told the first job is a moment old now.
    put_nvidia_smi(gpus, FREE, gpu_line(1, load=0, used=1))
    desk.does("job-run", "--gpus", "2", "--follow", "--cmd", "true")


def test_on_a_terminal_gpus_are_a_table_that_fits(desk: Desk, gpus: Path) -> None:
    set_gpus(gpus, FREE, gpu_line(1))
    with Terminal("gpus", "--server", "first", cwd=desk.root) as terminal:
        assert terminal.end() == 0
    heading, *rows = [line.rstrip() for line in terminal.text.splitlines() if "first" in line or "SERVER" in line]
    assert heading.split()[:3] == ["SERVER", "GPU", "STATE"]
    assert [row.split()[:3] for row in rows] == [["first", "0", "free"], ["first", "1", "used"]]
    assert max(map(len, (heading, *rows))) <= 80


@pytest.mark.row(286)
@pytest.mark.slow
@pytest.mark.usefixtures("gpus")
def test_a_job_whose_gpu_was_idle_for_the_whole_time_is_stopped_after_a_notice(desk: Desk) -> None:
    desk.does("job-run", "--gpus", "1", "--stop-if-idle", "2s", "--cmd", "sleep 1000")
    stopped = desk.waits_for(1, "killed")
    assert "stopped because it used its GPUs for less than 5 % in the last 2s: stop_if_idle" in stopped["reason"]
    notice = (desk.there() / ".jobs" / stopped["id"] / "job.err").read_text()
    assert "its GPUs are idle; stop_if_idle stops it in 1s if they stay so" in notice


@pytest.mark.row(286)
@pytest.mark.slow
@pytest.mark.parametrize("load", [97, "[N/A]"])
def test_a_job_whose_gpu_may_be_used_is_not_stopped(desk: Desk, gpus: Path, load: int | str) -> None:
    put_nvidia_smi(gpus, FREE, gpu_line(1, load=load))
    for device in ("1", "0"):
        desk.does("job-run", "--devices", device, "--stop-if-idle", "2s", "--cmd", "sleep 1000")
    desk.waits_for(2, "killed")
    assert desk.job(1)["state"] == "running"


def test_top_shows_what_is_reserved_by_this_project_and_by_others(desk: Desk, gpus: Path, tmp_path: Path) -> None:
    put_nvidia_smi(gpus, *(gpu_line(number, load=0, used=1) for number in range(3)))
    desk.does("job-run", "--gpus", "1", "--name", "r1", "--cmd", "sleep 1000")
    desk.waits_for(1, "running")
    name = f"{desk.root.name}-other"
    other = Desk(make_project(tmp_path / name, desk.servers.values(), name=name), desk.servers)
    other.does("prepare")
    other.configure(idle_after=1)
    other.does("job-run", "--gpus", "1", "--cmd", "sleep 1000")
    reserved = other.waits_for(1, "running")["id"]
    try:
        servers, of_gpus, _ = desk.does("top", "--once").split("\n\n")
        document = json.loads(desk.does("top", "--json"))
    finally:
        other.does("job-kill", "1", "--signal", "SIGKILL")
    header, row = (re.split(r"  +", line) for line in servers.splitlines()[:2])
    assert dict(zip(header, row, strict=False))["RESERVED"] == "2"
    lines = [re.split(r"  +", line) for line in of_gpus.splitlines()]
    column = lines[0].index("RESERVED BY")
    user = pwd.getpwuid(os.getuid()).pw_name
    shown = sorted(line[column] for line in lines[1:])
    assert shown[:2] == ["-", "job 1"]
    assert shown[2].startswith(f"{user} (")
    (server,) = document["servers"]
    leases = {gpu["lease"]["job"]: gpu["lease"] for gpu in server["gpus"] if gpu["lease"]}
    assert leases.keys() == {desk.job(1)["id"], reserved}
    assert leases[desk.job(1)["id"]]["name"] == "r1"
    assert leases[desk.job(1)["id"]]["since"].startswith("20")
    assert sum(gpu["lease"] is None for gpu in server["gpus"]) == 1


@pytest.mark.row(260)
@pytest.mark.slow
@pytest.mark.usefixtures("gpus")
def test_jobs_that_wait_keep_their_places_though_the_folder_of_the_queue_is_removed(desk: Desk) -> None:
    folder = desk.servers["first"].leases / f"remote-tool-{os.getuid()}"
    desk.does("job-run", "--gpus", "1", "--cmd", f"until [ -e {desk.root}/go ]; do sleep 0.1; done")
    desk.waits_for(1, "running")
    for number in (2, 3, 4):
        # Of these, the last one comes first.
        words = ["--priority", "5"] if number == 4 else []
        desk.does("job-run", "--gpus", "1", *words, "--cmd", f"echo {number} >> {desk.root}/order")
    remove_in_use(folder)
    until(lambda: len([*folder.glob("*.ticket")]) == 3, "all have their places again")
    until(lambda: len([*folder.glob("*.lease")]) == 1, "the running job has its lease again")
    assert [desk.job(number)["state"] for number in (1, 2, 3, 4)] == ["running", *["queued"] * 3]
    (desk.root / "go").touch()
    desk.waits_for(3, "succeeded")
    assert (desk.root / "order").read_text().split() == ["4", "2", "3"]


@pytest.mark.row(259, 270)
def test_each_job_has_a_gpu_of_its_own_and_sees_no_other(desk: Desk, gpus: Path) -> None:
    put_nvidia_smi(gpus, *(gpu_line(index, load=0, used=1) for index in range(2)))
    command = f"echo $CUDA_VISIBLE_DEVICES >> {desk.root}/seen; until [ -e {desk.root}/go ]; do sleep 0.1; done"
    for _ in range(3):
        desk.does("job-run", "--no-sync", "--gpus", "1", "--cmd", command)
    until(lambda: len(seen(desk)) == 2, "two have their GPUs")
    assert sorted(seen(desk)) == ["GPU-0", "GPU-1"]
    desk.waits_for(3, "queued")
    (desk.root / "go").touch()
    desk.waits_for(3, "succeeded")
    assert len(seen(desk)) == 3


def seen(desk: Desk) -> list[str]:
    file = desk.root / "seen"
    return file.read_text().split() if file.exists() else []


@pytest.mark.row(264)
def test_a_gpu_that_somebody_uses_is_not_given_to_a_job(desk: Desk, gpus: Path) -> None:
    put_nvidia_smi(gpus, gpu_line(0, load=0, used=5000), processes=process_line(0, os.getpid(), used=5000))
    desk.does("job-run", "--gpus", "1", "--cmd", "true")
    has_said(desk, 1, pwd.getpwuid(os.getuid()).pw_name)
    assert desk.job(1)["state"] == "queued"
    put_nvidia_smi(gpus, FREE)
    desk.waits_for(1, "succeeded")


@pytest.mark.row(263)
@pytest.mark.usefixtures("gpus")
def test_the_gpu_of_a_killed_supervisor_is_free_once_the_processes_of_its_job_have_gone(desk: Desk) -> None:
    desk.configure(idle_after=3600)
    desk.does("job-run", "--no-sync", "--gpus", "1", "--cmd", f"echo $$ >> {desk.root}/seen; exec sleep 1000")
    until(lambda: seen(desk), "it has its GPU")
    desk.does("job-run", "--no-sync", "--gpus", "1", "--cmd", "true")
    os.kill(parents()[int(seen(desk)[0])], signal.SIGKILL)
    has_said(desk, 2, "must be idle for 3600 s")
    assert desk.job(2)["state"] == "queued"
    desk.does("job-kill", "1", "--signal", "SIGKILL", "--yes")
    desk.waits_for(2, "succeeded")


@pytest.mark.row(275)
def test_a_launch_starts_nothing_where_one_server_has_no_free_gpu(desk_of_two: Desk) -> None:
    desk = desk_of_two
    desk.configure(idle_after=1)
    folders = [desk.servers[name].programs for name in ("first", "second")]
    try:
        put_nvidia_smi(folders[0], FREE)
        put_nvidia_smi(folders[1], gpu_line(0, load=97, used=5000), processes=process_line(0, os.getpid()))
        said = desk.refuses("helper-launch", "--gpus", "1", "--no-sync", "--cmd", f"touch {desk.root}/began")
        assert "second" in said
        assert {job["state"] for job in desk.jobs()} <= {"failed", "killed"}
        assert not (desk.root / "began").exists()
    finally:
        for folder in folders:
            remove_in_use(folder)


@pytest.mark.row(260)
@pytest.mark.slow
def test_a_large_job_is_not_passed_by_small_ones_unless_they_may(desk: Desk, gpus: Path) -> None:
    put_nvidia_smi(gpus, *(gpu_line(index, load=0, used=1) for index in range(2)))
    command = f"echo $REMOTE_TOOL_JOB_ID >> {desk.root}/seen; until [ -e {desk.root}/go-{{0}} ]; do sleep 0.1; done"
    desk.does("job-run", "--no-sync", "--gpus", "1", "--cmd", command.format(1))
    until(lambda: seen(desk), "the first has its GPU")
    for key, words in ((2, ("2",)), (3, ("1",)), (4, ("1", "--backfill"))):
        desk.does("job-run", "--no-sync", "--gpus", *words, "--cmd", command.format(key))
    until(lambda: len(seen(desk)) == 2, "another one has a GPU")
    assert seen(desk)[1] == desk.job(4)["id"]
    for key in (4, 1):
        (desk.root / f"go-{key}").touch()
    desk.waits_for(2, "running")
    assert desk.job(3)["state"] == "queued"
    for key in (2, 3):
        (desk.root / f"go-{key}").touch()
    desk.waits_for(3, "succeeded")
    assert seen(desk) == [desk.job(key)["id"] for key in (1, 4, 2, 3)]


@pytest.mark.row(264)
def test_no_job_gets_a_gpu_by_what_nvidia_smi_told_before_it_came(desk: Desk, gpus: Path) -> None:
    put_nvidia_smi(gpus, FREE, gpu_line(1, load=0, used=1))
    desk.does("job-run", "--no-sync", "--gpus", "1", "--cmd", f"until [ -e {desk.root}/go ]; do sleep 0.1; done")
    desk.waits_for(1, "running")
    set_gpus(gpus, FREE, gpu_line(1, load=0, used=900))
    desk.does("job-run", "--no-sync", "--gpus", "1", "--cmd", "true")
    has_said(desk, 2, "GPU 1 is used by a process")
    assert desk.job(2)["state"] == "queued"
    (desk.root / "go").touch()
    desk.waits_for(2, "succeeded")


@pytest.mark.row(270)
def test_behind_a_launch_command_a_job_sees_its_own_gpu_alone(desk: Desk, gpus: Path) -> None:
    put_nvidia_smi(gpus, *(gpu_line(index, load=0, used=1) for index in range(2)))
    first = desk.settings()["servers"]["first"]
    desk.configure(servers={"first": {**first, "launch": "env CUDA_VISIBLE_DEVICES=0,1", "devices": [1]}})
    words = ("job-run", "--no-sync", "--gpus", "1", "--follow", "--cmd", "echo $CUDA_VISIBLE_DEVICES")
    assert desk.does(*words) == "GPU-1\n"
