"""This machine as a server: the same commands in the project's own folder, of which nothing is sent or removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running, users_of
from tests.program import remote_tool
from tests.promises.conftest import Desk, until
from tests.stand_in_gpus import gpu_line, put_nvidia_smi
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sshd import TestServer

JOB = ("job-run", "--cmd")
TREE = "setsid sh -c 'echo $$ > child; exec sleep 1000' & echo $$ > parent; wait"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A project that is prepared on this machine, with a home folder and an environment that are active here."""
    (tmp_path / "leases").mkdir()
    monkeypatch.setenv("REMOTE_TOOL_TEST_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    root = tmp_path / "elsewhere" / "my project"
    root.mkdir(parents=True)
    (root / "train.py").write_text("print('trains')\n")
    begun = remote_tool("init", "--localhost", "--name", "digits", cwd=root)
    assert "next: remote-tool prepare" in begun.stderr, begun.stderr
    made = Desk(root, {})
    made.does("prepare")
    yield made
    made.tries("job-kill", "--yes", "--signal", "SIGKILL")


def contents(root: Path) -> dict[str, bytes]:
    """Return the files of a project without our own."""
    ours = {".remote", ".remote-scripts", ".jobs"}
    paths = [path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] not in ours]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip(), f"{path.name} is written")
    return int(path.read_text())


def test_a_job_runs_in_the_projects_own_folder_and_ends_with_its_own_status(home: Desk) -> None:
    ran = home.tries(*JOB, "pwd; python train.py; echo kept > out.txt; exit 5", "--follow")
    assert ran.returncode == 5, ran.stderr
    assert ran.stdout.split("\n")[:2] == [str(home.root), "trains"]
    assert (home.root / "out.txt").read_text() == "kept\n"
    job = home.job(1)
    assert (job["server"], job["state"], job["exit_code"]) == ("here", "failed", 5)
    assert home.tries("run", "--cmd", "kill -9 $$").returncode == 137


@pytest.mark.row(316)
def test_nothing_of_the_project_is_ever_removed(home: Desk) -> None:
    """Not by a sync after a file was excluded or removed, not by clean, and not by clean --all."""
    (home.root / "left out.txt").write_text("mine")
    (home.root / "data").mkdir()
    (home.root / "data" / "big.bin").write_text("mine too")
    home.does("rsync")
    (home.root / ".remote" / "exclude.txt").write_text("/data\n/left out.txt\n")
    home.does("rsync")
    home.does(*JOB, "echo kept > out.txt", "--follow")
    before = contents(home.root)
    assert {"train.py", "left out.txt", "data/big.bin", "out.txt"} == set(before)
    home.does("clean", "--yes")
    home.does("clean", "--all", "--yes", "--server", "here")
    assert contents(home.root) == before
    assert not (home.root / ".jobs").exists()
    assert not (home.root / ".remote-scripts").exists()
    home.does("prepare")
    assert home.tries(*JOB, "cat out.txt", "--follow").stdout == "kept\n"


def test_git_does_not_see_our_folders(home: Desk) -> None:
    home.does(*JOB, "true", "--follow")
    (home.root / ".remote" / ".gitignore").write_text("*\n")
    for words in (("init", "--quiet"), ("status", "--porcelain")):
        ran = subprocess.run(["git", *words], cwd=home.root, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "?? train.py\n"


def test_the_command_that_stops_a_rented_machine_does_not_run(home: Desk) -> None:
    home.configure(on_empty={"run": "touch stopped", "after": "1s"})
    home.does(*JOB, "true", "--follow")
    job_id = home.job(1)["id"]

    until(lambda: not users_of(str(home.root / ".jobs" / job_id)), "the supervisor of the job has ended")
    assert not (home.root / "stopped").exists()


def test_a_command_before_prepare_ends_with_its_own_status_also_by_a_signal_without_a_name(home: Desk) -> None:
    shutil.rmtree(home.root / ".remote-scripts")
    ended = {
        command: home.tries("run", "--cmd", command).returncode for command in ("exit 6", "kill -9 $$", "kill -40 $$")
    }
    assert ended == {"exit 6": 6, "kill -9 $$": 137, "kill -40 $$": 168}


def test_eight_jobs_share_four_gpus_and_each_runs_the_code_that_was_there_when_it_was_given(
    home: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    put_nvidia_smi(programs, *(gpu_line(index, load=0, used=1) for index in range(4)))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    home.configure(idle_after=1)
    (home.root / "train.py").write_text(
        "import os, time\nprint('first', os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "open(f'out-{os.environ[\"REMOTE_TOOL_JOB_ID\"]}.txt', 'w').write('x')\n"
        "while not os.path.exists(os.environ['GO']): time.sleep(0.05)\n"
    )
    go = tmp_path / "go"
    for _ in range(8):
        home.does(*JOB, "python train.py", "--gpus", "1", "--env", f"GO={go}")
    until(lambda: [job["state"] for job in home.jobs()].count("running") == 4, "four jobs run")
    waiting = [job for job in home.jobs() if job["state"] == "queued"]
    assert len(waiting) == 4
    (home.root / "train.py").write_text("print('second')\n")
    go.touch()
    until(lambda: all(job["state"] == "succeeded" for job in home.jobs()), "all have run")
    printed = [home.does("job-tail", str(key), "--no-follow").split() for key in range(1, 9)]
    assert [words[0] for words in printed] == ["first"] * 8
    assert {words[1] for words in printed} == {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}
    written = {path.name for path in home.root.glob("out-*.txt")}
    assert written == {f"out-{job['id']}.txt" for job in home.jobs()}


def test_a_job_after_another_runs_old_code_with_the_newest_checkpoint(home: Desk) -> None:
    home.configure(artifacts=["ck/*.pt"])
    (home.root / "ck").mkdir()
    (home.root / "ck" / "last.pt").write_text("old")
    (home.root / "resume.py").write_text("print('first', open('ck/last.pt').read())\n")
    home.does(*JOB, "until [ -e go ]; do sleep 0.05; done; printf new > ck/new; mv ck/new ck/last.pt")
    home.does(*JOB, "python resume.py", "--after", "1")
    (home.root / "resume.py").write_text("print('second')\n")
    (home.root / "go").touch()
    home.waits_for(2, "succeeded")
    assert home.does("job-tail", "2", "--no-follow") == "first new\n"


def test_a_stop_ends_the_whole_tree(home: Desk) -> None:
    home.does(*JOB, TREE)
    pids = [pid_in(home.root / name) for name in ("parent", "child")]
    assert all(map(is_running, pids))
    home.does("job-kill", "1")
    assert not any(map(is_running, pids))
    assert home.job(1)["state"] == "killed"


def test_a_job_goes_on_when_the_program_that_follows_it_is_killed(home: Desk) -> None:
    with home.runs_meanwhile(*JOB, "echo $$ > parent; until [ -e go ]; do sleep 0.05; done; exit 7", "--follow") as it:
        pid = pid_in(home.root / "parent")
        it.send_signal(signal.SIGKILL)
    assert is_running(pid)
    (home.root / "go").touch()
    assert home.waits_for(1, "failed")["exit_code"] == 7


@pytest.mark.row(317)
def test_variables_of_the_shell_in_which_it_was_typed_are_not_the_jobs(home: Desk) -> None:
    secret = {"API_TOKEN": "in no job", "LC_ALL": "C.UTF-8"}
    ran = home.tries(*JOB, "env", "--follow", environment=secret)
    assert "API_TOKEN" not in ran.stdout
    assert "LC_ALL=C.UTF-8" in ran.stdout
    ran = home.tries("run", "--cmd", 'echo "$HOME"', environment=secret)
    assert ran.stdout == f"{os.environ['HOME']}\n"


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_shell_has_a_terminal_of_the_size_of_this_one(home: Desk, is_prepared: bool) -> None:
    if not is_prepared:
        shutil.rmtree(home.root / ".remote-scripts")
    changes = 'until [ "$(stty size)" = "30 90" ]; do sleep 0.05; done; echo changed'
    command = f"stty size; {changes}; read answer; echo said $answer in $PWD; exit 4"
    with Terminal("shell", "--cmd", command, cwd=home.root) as screen:
        screen.until("40 80")
        screen.resize(30, 90)
        screen.until("changed")
        screen.type("yes\r")
        screen.until(f"said yes in {home.root}")
        assert screen.end() == 4


def test_a_job_on_a_terminal_runs_without_one_here(home: Desk) -> None:
    home.does("job-run", "--tty", "--cmd", "tty; exit 4")
    assert home.waits_for(1, "failed")["exit_code"] == 4
    assert "/dev/pts/" in home.does("job-tail", "1", "--no-follow")


@pytest.mark.row(318)
def test_this_machine_and_a_server_take_part_in_one_launch(home: Desk, two_machines: dict[str, TestServer]) -> None:
    server = two_machines["first"]
    login = {
        "hostname": server.address,
        "port": server.port,
        "username": server.username,
        "private_key": str(server.key),
    }
    environment = {"existing": sys.prefix}
    here = {"localhost": True, "environment": environment}
    home.configure(servers={"here": here, "first": login | {"environment": environment}}, name="launched-with-here")
    home.does("prepare")
    command = "echo rank $NODE_RANK of $NNODES; test $NODE_RANK = 0 && echo $MASTER_ADDR $PWD"
    ran = home.tries("helper-launch", "--cmd", f"{command}; exit 0", "--follow")
    assert ran.returncode == 0, ran.stderr
    assert "rank 0 of 2" in ran.stdout
    assert "rank 1 of 2" in ran.stdout
    assert str(home.root) in ran.stdout
    assert contents(server.home / "launched-with-here").keys() >= {"train.py"}
    assert not (server.home / "launched-with-here" / ".jobs" / ".gitignore").exists()
    home.does("clean", "--all", "--yes", "--server", "first")


def test_what_needs_a_login_says_that_there_is_none(home: Desk) -> None:
    for command in ("keys", "ssh-config"):
        assert "here is this machine: nothing logs in to it" in home.refuses(command, status=2)
    assert home.does("connections") == ""
    checked = json.loads(home.does("check", "--json"))
    names = [each["name"] for each in checked["servers"][0]["checks"]]
    assert "login" in names
    assert "host key" not in names


def test_a_login_is_refused_beside_localhost(home: Desk) -> None:
    home.configure(servers={"here": {"localhost": True, "hostname": "10.0.0.5"}})
    told = home.refuses("job-list", status=2)
    assert "hostname: cannot be combined with localhost: nothing logs in to this machine" in told
    home.configure(servers={"here": {"localhost": True}, "there": {"localhost": True}})
    assert "is the same machine as here" in home.refuses("job-list", status=2)
    home.configure(servers={"here": {"localhost": "perhaps"}})
    assert "localhost: must be" in home.refuses("job-list", status=2)


def test_ports_of_this_machine_are_not_forwarded_to_itself(home: Desk) -> None:
    for words in (("18999",), ("--reverse", "18999")):
        assert "here is this machine: nothing logs in to it" in home.refuses("forward", *words, status=2)


def test_a_job_that_can_never_begin_fails_its_command(home: Desk) -> None:
    started = home.tries(*JOB, "true", "--gpus", "1")
    assert started.returncode == 1, started.stdout
    assert "this server has no nvidia-smi" in started.stderr


@pytest.mark.row(316)
def test_a_large_file_is_not_shared_with_the_copies_of_jobs(home: Desk) -> None:
    large = home.root / "large.bin"
    large.write_bytes(b"a" * (2 << 20))
    home.does(*JOB, "printf JOBWROTE | dd of=large.bin conv=notrunc status=none", "--frozen", "--follow")
    assert large.read_bytes()[:8] == b"a" * 8


@pytest.mark.row(316)
def test_an_own_gitignore_stays(home: Desk) -> None:
    home.configure(remote_jobs_folder_name="outputs")
    (home.root / "outputs").mkdir()
    (home.root / "outputs" / ".gitignore").write_text("*.ckpt\n")
    home.does("prepare")
    home.does(*JOB, "true", "--follow")
    assert (home.root / "outputs" / ".gitignore").read_text() == "*.ckpt\n"
