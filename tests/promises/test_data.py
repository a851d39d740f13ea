"""Files beside the project: data sets, and what an earlier job made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk


@pytest.fixture
def source(desk_of_two: Desk, tmp_path: Path) -> Path:
    """A data set here, which has a place in the home folder of each server."""
    folder = tmp_path / "a set"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "it's 1.txt").write_text("a cat\n")
    (folder / "labels").write_text("cat\n")
    place = f"~/data-{desk_of_two.settings()['name']}"
    desk_of_two.configure(data={"my-set": {"from": str(folder), "to": place}})
    return folder


def placed(desk: Desk, server: str) -> Path:
    return desk.servers[server].home / f"data-{desk.settings()['name']}"


@pytest.mark.row(165)
def test_a_data_set_is_a_variable_of_every_command_and_no_sync_removes_any_of_it(
    desk_of_two: Desk, source: Path
) -> None:
    desk = desk_of_two
    desk.does("data-sync")
    (placed(desk, "first") / "cache").write_text("made there\n")
    (source / "labels").unlink()
    desk.does("rsync")
    desk.does("data-sync")
    for words in (("run",), ("job-run", "--follow"), ("helper-launch", "--follow")):
        said = desk.does(*words, "--server", "first", "--cmd", 'cd "$REMOTE_TOOL_DATA_MY_SET"; cat cats/* labels cache')
        assert [line.removeprefix("first | ") for line in said.splitlines()] == ["a cat", "cat", "made there"]
    assert (placed(desk, "second") / "labels").read_text() == "cat\n"


@pytest.mark.row(165)
def test_a_file_of_a_data_set_that_changed_on_a_server_is_kept_until_overwrite(desk_of_two: Desk, source: Path) -> None:
    desk = desk_of_two
    desk.does("data-sync")
    theirs = placed(desk, "second") / "labels"
    theirs.write_text("a dog\n")
    (source / "labels").write_text("a mouse\n")
    said = " ".join(desk.refuses("data-sync", status=3).split())
    assert "second: " in said
    assert "the server has its own version: labels" in said
    assert "remote-tool data-sync my-set --overwrite" in said
    assert theirs.read_text() == "a dog\n"
    assert (placed(desk, "first") / "labels").read_text() == "a mouse\n"
    desk.does("data-sync", "--overwrite")
    assert theirs.read_text() == "a mouse\n"


@pytest.mark.row(165)
def test_a_data_set_whose_sync_was_cut_off_is_not_called_complete_until_it_is(desk_of_two: Desk, source: Path) -> None:
    desk = desk_of_two

    def value() -> str:
        (found,) = json.loads(desk.tries("check", "--server", "first", "--json").stdout)["servers"]
        (check,) = [check for check in found["checks"] if check["name"] == "data my-set"]
        return str(check["value"])

    breaking = desk.servers["first"].programs / "rsync"
    breaking.parent.mkdir(exist_ok=True)
    breaking.write_text("#!/bin/sh\necho No space left on device >&2\nexit 11\n")
    breaking.chmod(0o755)
    try:
        desk.refuses("data-sync", status=3)
    finally:
        breaking.unlink()
    assert value() == f"not all of it at ~/{placed(desk, 'first').name}"
    (source / "more").write_text("more\n")
    desk.does("data-sync")
    assert value() == f"~/{placed(desk, 'first').name}"
    assert (placed(desk, "first") / "more").read_text() == "more\n"


def _write(desk: Desk, text: str) -> str:
    """Run a job on the first server that makes a checkpoint; return its key."""
    command = f"mkdir -p run; printf %s {text} > run/last"
    desk.does("job-run", "--server", "first", "--artifact", "run/*", "--follow", "--cmd", command)
    return str(max(job["key"] for job in desk.jobs()))


@pytest.mark.row(164)
def test_a_launch_from_a_job_begins_with_its_files_on_every_server(desk_of_two: Desk) -> None:
    desk = desk_of_two
    key = _write(desk, "one")
    other = desk.there("second") / "run"
    assert not other.exists()
    said = desk.does("helper-launch", "--from-job", key, "--follow", "--cmd", "echo has $(cat run/last)")
    assert said.count("has one") == 2
    (other / "own").write_text("of this server\n")
    key = _write(desk, "three")
    said = desk.does("helper-launch", "--from-job", key, "--follow", "--cmd", "echo has $(cat run/last)")
    assert said.count("has three") == 2
    assert (other / "own").read_text() == "of this server\n"


@pytest.mark.row(164)
def test_a_newer_file_on_a_server_is_not_overwritten_by_those_of_a_job_and_nothing_starts(desk_of_two: Desk) -> None:
    desk = desk_of_two
    key = _write(desk, "one")
    other = desk.there("second") / "run"
    other.mkdir()
    (other / "last").write_text("newer")
    said = " ".join(desk.refuses("helper-launch", "--from-job", key, "--cmd", "touch run/began").split())
    assert "second: some files were not sent: the server has its own version" in said
    assert f"remote-tool job-pull {key} --to-all --overwrite" in said
    words = ("job-run", "--server", "second", "--from-job", key, "--cmd", "touch run/began")
    assert "the server has its own version" in " ".join(desk.refuses(*words).split())
    assert [path.name for path in other.iterdir()] == ["last"]
    assert (other / "last").read_text() == "newer"
    assert not (desk.there() / "run" / "began").exists()
    desk.does("job-pull", key, "--to-all", "--overwrite")
    assert (other / "last").read_text() == "one"
