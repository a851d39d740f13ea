"""A project of labml_remote 0.1.1 works unchanged, and the differences are those that README lists."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.files_over_http import serve
from tests.processes import is_running
from tests.project import THIS_PYTHON
from tests.promises.conftest import PATIENCE, Desk, until
from tests.sshd import python_of_servers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.sshd import TestServer


@pytest.fixture
def old(two_machines: dict[str, TestServer], tmp_path: Path) -> Desk:
    """A project with the keys and files that labml_remote wrote, and a key that others can read."""
    server = two_machines["first"]
    folder = tmp_path / "old" / ".remote"
    folder.mkdir(parents=True)
    for name in ("", ".pub"):
        shutil.copy(f"{server.key}{name}", folder / f"private_key{name}")
    (folder / "private_key").chmod(0o644)
    (folder / "exclude.txt").write_text(
        ".remote\n.git\n__pycache__\n.ipynb_checkpoints\nlogs\n.DS_Store\n.*.swp\n*.egg-info/\n"
    )
    (folder / "configs.yaml").write_text(
        f"name: sample-{os.urandom(4).hex()}\nservers:\n  primary:\n"
        f"    hostname: {server.address}\n    username: {server.username}\n    port: {server.port}\n"
        "    private_key: ./.remote/private_key\n    password:\nscripts_folder: .remote/scripts\n"
    )
    (folder.parent / "train.py").write_text("print('trained')\n")
    return Desk(folder.parent, {"first": server})


def test_its_configuration_is_read_and_its_environment_made_without_root(old: Desk) -> None:
    sudo = old.servers["first"].programs / "sudo"
    sudo.parent.mkdir(exist_ok=True)
    sudo.write_text(f'#!/bin/sh\necho "$@" >> {old.root}/sudo-was-asked\n')
    sudo.chmod(0o755)
    try:
        # Its own default would download conda.
        old.configure(environment="venv", python=python_of_servers())
        said = old.tries("setup").stderr
    finally:
        sudo.unlink()
    assert re.search(r"private_key.*(600|private)", said), said
    assert (old.root / ".remote" / "private_key").stat().st_mode & 0o777 == 0o600
    assert not (old.root / "sudo-was-asked").exists()
    python = old.does("run", "--cmd", "python -c 'import sys; print(sys.prefix)'").strip()
    assert python.startswith(f"{old.there()}/.remote-scripts")
    old.does("rsync")
    logs = old.root / ".remote" / "logs"
    steps = [re.fullmatch(r"\d{8}-\d{6}-\d{6}-primary-(\w+)\.log", path.name) for path in logs.glob("*.log")]
    assert sorted(step[1] for step in steps if step) == ["environment", "rsync"]
    assert not list(logs.rglob("stdout.log"))


def test_its_commands_tags_keys_and_logs_are_the_same(old: Desk) -> None:
    old.configure(environment=THIS_PYTHON)
    for command in ("setup", "rsync", "update-packages"):
        old.does(command)
    old.does("job-run", "--cmd", "python train.py", "--tag", "one", "--tag", "two")
    old.does("job-run", "--cmd", "true", "--tag", "__hidden__")
    old.does("job-wait", "1", "2")
    job = old.job(1)
    assert (job["tags"], job["command"]) == (["one", "two"], "python train.py")
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{32}", job["id"])
    assert [job["key"] for job in old.jobs("--stopped", "--hidden")] == [1, 2]
    assert [job["key"] for job in old.jobs("--stopped")] == [1]
    assert old.does("job-tail", "--job", "1", "--delay", "0") == "trained\n"
    old.does("job-rsync")
    assert (old.root / ".remote" / "jobs" / job["id"] / "job.out").read_text() == "trained\n"


def test_links_are_sent_as_links_and_what_is_removed_here_is_removed_there(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("not of the project\n")
    (desk.root / "data.txt").write_text("data\n")
    (desk.root / "link.txt").symlink_to("data.txt")
    (desk.root / "away.txt").symlink_to(tmp_path / "elsewhere")
    said = desk.tries("rsync").stderr
    assert "away.txt" in said
    there = desk.there()
    assert ((there / "link.txt").is_symlink(), (there / "link.txt").read_text()) == (True, "data\n")
    assert not (there / "away.txt").is_symlink()
    (desk.root / "link.txt").unlink()
    desk.does("rsync")
    assert not (there / "link.txt").is_symlink()
    assert (there / "data.txt").exists()


def test_starts_send_changed_files_unless_told_not_to(desk: Desk) -> None:
    (desk.root / "train.py").write_text("print('first')\n")
    assert desk.does("job-run", "--follow", "--cmd", "python train.py") == "first\n"
    (desk.root / "train.py").write_text("print('second')\n")
    assert desk.does("job-run", "--no-sync", "--follow", "--cmd", "python train.py") == "first\n"
    assert desk.does("helper-launch", "--follow", "--cmd", "python train.py").endswith("second\n")


def test_commands_without_a_server_go_to_all(desk_of_two: Desk) -> None:
    shown = desk_of_two.does("run", "--cmd", "echo here")
    assert sorted(shown.splitlines()) == ["first  | here", "second | here"]
    desk_of_two.does("job-run", "--cmd", "true")
    assert [(job["server"], job["tags"]) for job in desk_of_two.jobs()] == [("first", []), ("second", [])]


TRAIN = """
import json, os, sys
names = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GLOO_SOCKET_IFNAME", "MASTER_PORT")
known = {name: os.environ.get(name) for name in names}
print(json.dumps(known | {"arguments": sys.argv[1:]}), flush=True)
"""


@pytest.mark.slow
def test_a_launch_is_torchrun_with_a_job_for_each_server(desk_of_two: Desk) -> None:
    desk = desk_of_two
    (desk.root / "train.py").write_text(TRAIN)
    launch = ("helper-torch-launch", "--use-env", "--nproc-per-node", "2", "--cmd", "train.py --lr 1")
    desk.does(*launch)
    assert [job["tags"] for job in desk.jobs()] == [["master"], []]
    ranks = said_by_ranks(desk, "1", "2")
    assert sorted((rank["RANK"], rank["LOCAL_RANK"], rank["NODE_RANK"]) for rank in ranks) == [
        ("0", "0", "0"),
        ("1", "1", "0"),
        ("2", "0", "1"),
        ("3", "1", "1"),
    ]
    assert all(rank["arguments"] == ["--lr", "1"] and rank["GLOO_SOCKET_IFNAME"] for rank in ranks)
    (port,) = {rank["MASTER_PORT"] for rank in ranks}
    assert port != "1234"
    assert desk.tries(*launch, "--max-restarts", "1").returncode == 0
    numbers = {(rank["NODE_RANK"], rank["GROUP_RANK"]) for rank in said_by_ranks(desk, "3", "4")}
    assert numbers == {(None, "0"), (None, "1")}


def said_by_ranks(desk: Desk, *keys: str) -> Sequence[dict[str, Any]]:
    """Return what each rank of a launch printed."""
    desk.does("job-wait", *keys)
    lines = desk.does("job-tail", *keys).splitlines()
    return [json.loads(line.partition(" | ")[2]) for line in lines]


DEAF = """
import os, signal, subprocess, sys, time
def told(*_):
    open("told", "w").close()
signal.signal(signal.SIGTERM, told)
if len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
    open("pids.new", "w").write(f"{os.getpid()} {child.pid}")
    os.rename("pids.new", "pids")
while True:
    time.sleep(1)
"""


@pytest.mark.row(1, 2)
@pytest.mark.parametrize(("words", "is_told"), [(("--grace", "2"), True), (("--signal", "SIGKILL"), False)])
def test_a_stop_is_sigterm_then_sigkill_to_every_process(desk: Desk, words: tuple[str, ...], is_told: bool) -> None:
    (desk.root / "deaf.py").write_text(DEAF)
    desk.does("job-run", "--cmd", "python deaf.py")
    until((desk.there() / "pids").exists, "the job and its child run")
    pids = [int(pid) for pid in (desk.there() / "pids").read_text().split()]
    desk.does("job-kill", "1", *words)
    assert not any(is_running(pid) for pid in pids)
    assert (desk.there() / "told").exists() is is_told


def test_logs_are_fetched_once_or_again_and_again(desk: Desk) -> None:
    desk.does("job-run", "--cmd", f"echo one; until [ -e {desk.root}/go ]; do sleep 0.1; done; echo two")
    fetched = desk.root / ".remote" / "jobs" / desk.job(1)["id"] / "job.out"

    def has_fetched(text: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(fetched.read_text() == text)
        return False

    with desk.runs_meanwhile("job-rsync", "--delay", "0.2") as program:
        until(lambda: has_fetched("one\n"), "the first line is here")
        (desk.root / "go").touch()
        until(lambda: has_fetched("one\ntwo\n"), "the second line is here")
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 130


@pytest.mark.slow
def test_an_existing_conda_is_used(desk: Desk, tmp_path: Path) -> None:
    """It is in ~/miniconda, where labml_remote has put it."""
    parts = pytest.importorskip("tests.conda_parts", reason="py-rattler is not installed")
    base = desk.servers["first"].home / "miniconda"
    (tmp_path / "site" / "channel").mkdir(parents=True)
    parts.build_channel(tmp_path / "site" / "channel")
    parts.build_installer(tmp_path / "Tiny.sh")
    environment = os.environ | {"HOME": str(base.parent)}
    subprocess.run(["sh", tmp_path / "Tiny.sh", "-b", "-p", base], check=True, env=environment)
    try:
        with serve(tmp_path / "site") as site:
            channels = [f"{site.url}/channel"]
            desk.configure(environment={"miniconda": {"channels": channels}}, python=parts.SHORT_VERSION)
            desk.does("setup")
        shown = desk.does("run", "--cmd", "command -v conda python")
    finally:
        shutil.rmtree(base)
    assert shown.splitlines() == [f"{base}/condabin/conda", f"{desk.there()}/.remote-scripts/environment/bin/python"]
