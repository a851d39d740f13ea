"""Data sets beside the project: placed whole, resumed, never removed, and known to every command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from remote_tool import Hooks, JobState, Workspace
from remote_tool.errors import SyncError, UsageError
from remote_tool.workflows.events import Event, Notice
from remote_tool.workflows.sync import first_sync
from tests.extended.environments.test_facts import stub
from tests.extended.workflows.jobs.test_jobs import until
from tests.program import remote_tool
from tests.project import make_project, write_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.sshd import TestServer


class Desk:
    """A prepared project with one data set in the home folder and one at an absolute place of each server."""

    def __init__(self, folder: Path, servers: list[TestServer]) -> None:
        self.servers = servers
        self.source = folder / "here" / "a set"
        (self.source / "cats").mkdir(parents=True)
        (self.source / "cats" / "it's 1.jpg").write_bytes(b"cat")
        (self.source / "label.txt").write_text("cat")
        self.scratch = folder / "scratch disk" / "set"
        self.root = make_project(folder / "project", servers)
        self.configure({"my-set": {"from": str(self.source), "to": "~/data/set"}})
        Workspace.find(self.root).prepare()

    def configure(self, data: dict[str, dict[str, str]]) -> Workspace:
        write_configuration(self.root, self.servers, data=data)
        return Workspace.find(self.root)

    @property
    def targets(self) -> list[Path]:
        return [server.home / "data" / "set" for server in self.servers]

    def checks(self, name: str = "my-set") -> list[tuple[str, str]]:
        answer = Workspace.find(self.root).check()
        return [
            (check.status.name, check.value)
            for each in answer.servers
            for check in each.checks
            if check.name == f"data {name}"
        ]


@pytest.fixture
def desk(make_server: MakeServer, tmp_path: Path) -> Desk:
    return Desk(tmp_path, [make_server("first"), make_server("second")])


def largest_in(folder: Path) -> int:
    """Return the size of the largest file below a folder; rsync renames them meanwhile."""
    sizes = [0]
    for path in folder.rglob("*"):
        with suppress(OSError):
            sizes.append(path.lstat().st_size)
    return max(sizes)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.row(165)
@pytest.mark.slow
def test_a_data_set_is_placed_and_its_path_is_a_variable_of_every_command(desk: Desk) -> None:
    workspace = Workspace.find(desk.root)
    assert desk.checks() == [("FAIL", "nothing at ~/data/set")] * 2
    results = workspace.data_sync()["my-set"]
    assert list(results.values) == ["first", "second"]
    assert all(sorted(each.sent) == ["cats/it's 1.jpg", "label.txt"] for each in results.values.values())
    assert [names_in(target) for target in desk.targets] == [["cats", "cats/it's 1.jpg", "label.txt"]] * 2
    assert desk.checks() == [("OK", "~/data/set")] * 2
    look = 'cat "$REMOTE_TOOL_DATA_MY_SET/label.txt"; [ "$REMOTE_TOOL_DATA_MY_SET" = "$HOME/data/set" ]'
    assert workspace.run(look).values == {"first": 0, "second": 0}
    job = workspace.start("first", look)
    assert (list(job.tail()), job.state) == (["cat"], JobState.SUCCEEDED)
    (desk.root / "ranks.py").write_text(
        "import os\nprint(open(os.environ['REMOTE_TOOL_DATA_MY_SET'] + '/label.txt').read())\n"
    )
    assert [each.wait(timeout=300) for each in workspace.launch_torch("ranks.py")] == [JobState.SUCCEEDED] * 2
    again = workspace.data_sync(["my-set"])["my-set"]
    assert not any(result.changed for result in again.values.values())


@pytest.mark.row(165)
def test_exclude_txt_is_not_named_for_a_data_set(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_sync, "LARGE", 1)
    told: list[Event] = []
    Workspace.find(desk.root, Hooks(report=told.append)).data_sync()
    assert [event.text for event in told if isinstance(event, Notice)] == []


@pytest.mark.row(165)
@pytest.mark.slow
def test_nothing_is_removed_by_a_later_placing_nor_by_a_sync_of_the_project(desk: Desk) -> None:
    workspace = Workspace.find(desk.root)
    workspace.data_sync()
    (desk.targets[0] / "cache.bin").write_text("of the server")
    (desk.source / "label.txt").unlink()
    (desk.source / "new.txt").write_text("new")
    workspace.rsync()
    workspace.data_sync()
    assert names_in(desk.targets[0]) == ["cache.bin", "cats", "cats/it's 1.jpg", "label.txt", "new.txt"]
    assert names_in(desk.targets[1]) == ["cats", "cats/it's 1.jpg", "label.txt", "new.txt"]


@pytest.mark.row(165)
@pytest.mark.slow
def test_what_was_changed_on_a_server_is_named_and_only_overwrite_replaces_it(desk: Desk) -> None:
    workspace = Workspace.find(desk.root)
    workspace.data_sync()
    changed = desk.targets[1] / "label.txt"
    changed.write_text("changed there")
    for here in ("cat", "cat", "changed here", "changed here"):
        if (desk.source / "label.txt").read_text() != here:
            (desk.source / "label.txt").write_text(here)
        placed = workspace.data_sync(check=False)["my-set"]
        (error,) = placed.errors.values()
        assert (error.server, list(placed.values)) == ("second", ["first"])
        assert "the server has its own version: label.txt" in str(error)
        assert error.hint.endswith("remote-tool data-sync my-set --overwrite")
        assert [status for status, _ in desk.checks()] == ["OK", "FAIL"]
        assert changed.read_text() == "changed there"
    workspace.data_sync(overwrite=True)
    assert changed.read_text() == "changed here"
    assert [status for status, _ in desk.checks()] == ["OK", "OK"]


@pytest.mark.row(165)
@pytest.mark.slow
def test_an_interrupted_data_sync_is_not_called_complete_and_resumes(desk: Desk, tmp_path: Path) -> None:
    # One that takes ten seconds, so that it is interrupted before it is done.
    slow = stub(tmp_path / "slow", "rsync", f'exec {shutil.which("rsync")} --bwlimit=30m "$@"')
    size = 300 * 1024 * 1024
    with (desk.source / "large.bin").open("wb") as file:
        file.truncate(size)
    workspace = desk.configure({"my-set": {"from": str(desk.source), "to": str(desk.scratch)}})
    program = [sys.executable, "-m", "remote_tool", "data-sync", "--server", "first"]
    environment = {**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    sending = subprocess.Popen(
        program, cwd=desk.root, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    beside = desk.scratch.parent / ".set.remote-tool"
    until(lambda: largest_in(beside) > size // 20)
    sending.send_signal(signal.SIGINT)
    assert sending.wait(timeout=300) != 0
    assert [status for status, _ in desk.checks()] == ["FAIL", "FAIL"]
    assert desk.checks()[0][1] == f"not all of it at {desk.scratch}"
    result = workspace.data_sync(servers=["first"])["my-set"].values["first"]
    assert result.bytes < size * 0.97
    assert (desk.scratch / "large.bin").stat().st_size == size
    assert desk.checks()[0] == ("OK", str(desk.scratch))
    assert workspace.run('[ -e "$REMOTE_TOOL_DATA_MY_SET/large.bin" ]', ["first"]).values == {"first": 0}


@pytest.mark.slow
def test_a_disk_that_was_emptied_lacks_it_and_gets_it_again(desk: Desk) -> None:
    workspace = Workspace.find(desk.root)
    workspace.data_sync()
    shutil.rmtree(desk.targets[0])
    assert [status for status, _ in desk.checks()] == ["FAIL", "OK"]
    workspace.data_sync()
    assert names_in(desk.targets[0]) == ["cats", "cats/it's 1.jpg", "label.txt"]
    assert [status for status, _ in desk.checks()] == ["OK", "OK"]


def test_a_folder_that_has_the_home_or_the_project_in_it_is_refused_on_the_server(desk: Desk) -> None:
    (first, _) = desk.servers
    (first.home / "elsewhere").symlink_to(first.home / "project")
    for target, why in (
        ("~/elsewhere", "it is in the project"),
        ("~/elsewhere/data", "it is in the project"),
        (str(first.home), "the project is in it"),
        (str(first.home.parent), "the project is in it"),
        (str(first.home / "project"), "it is in the project"),
    ):
        workspace = desk.configure({"my-set": {"from": str(desk.source), "to": target}})
        with pytest.raises(SyncError) as refused:
            workspace.data_sync(servers=["first"])
        assert refused.value.message == f"first: {target} cannot be the folder of a data set: {why}"
    assert not (first.home / "project" / "label.txt").exists()
    assert not (first.home / "project" / "data").exists()


def test_missing_local_files_are_named_before_anything_is_sent(desk: Desk) -> None:
    workspace = Workspace.find(desk.root)
    with pytest.raises(UsageError, match="Unknown data set 'my-st'") as unknown:
        workspace.data_sync(["my-st"])
    assert unknown.value.hint.startswith("Did you mean my-set?")
    shutil.rmtree(desk.source)
    with pytest.raises(UsageError, match=r"a set, the data set my-set, does not exist"):
        workspace.data_sync()
    desk.source.mkdir()
    with pytest.raises(UsageError, match="is empty"):
        workspace.data_sync()
    with pytest.raises(UsageError, match=r"No data sets in configs\.yaml"):
        desk.configure({}).data_sync()


def test_keys_and_credentials_stay_here_and_that_is_said(desk: Desk) -> None:
    (desk.source / ".env").write_text("TOKEN=1")
    ran = remote_tool("data-sync", "--json", cwd=desk.root)
    (placed,) = json.loads(ran.stdout)["data"]
    assert (placed["name"], [each["server"] for each in placed["servers"]]) == ("my-set", ["first", "second"])
    assert "not sent: .env may contain secrets" in ran.stderr
    assert not (desk.targets[0] / ".env").exists()


def test_a_server_that_is_given_back_keeps_its_data_sets_and_that_is_said(desk: Desk) -> None:
    Workspace.find(desk.root).data_sync()
    told = remote_tool("clean", "--all", "--server", "first", "--yes", cwd=desk.root)
    assert told.returncode == 0
    assert "kept data sets: ~/data/set\n" in told.stderr
    assert names_in(desk.targets[0]) == ["cats", "cats/it's 1.jpg", "label.txt"]


def test_what_is_said_of_a_first_sync_is_for_projects_only(desk: Desk, tmp_path: Path) -> None:
    (desk.source / "wandb").mkdir()
    (desk.source / "wandb" / "x").write_text("x")
    (desk.source / "out").symlink_to(tmp_path)
    told = remote_tool("data-sync", cwd=desk.root).stderr
    assert "not sent: out is a link that points outside" in told
    assert "first sync" not in told
    assert "remote-tool run" not in told


@pytest.mark.slow
def test_a_relay_sends_it_from_here_once_and_the_rest_from_server_to_server(desk: Desk) -> None:
    (desk.source / "large.bin").write_bytes(os.urandom(2_000_000))
    placed = Workspace.find(desk.root).data_sync(relay=True)["my-set"].values.values()
    assert sorted(each.relayed >= 2_000_000 for each in placed) == [False, True]
    assert sorted(each.bytes < 1_000_000 for each in placed) == [False, True]
    names = ["cats", "cats/it's 1.jpg", "label.txt", "large.bin"]
    assert [names_in(target) for target in desk.targets] == [names, names]
    assert [status for status, _ in desk.checks()] == ["OK", "OK"]
    assert not (desk.servers[0].home / "project" / "large.bin").exists()
