"""With the disk of a project full, this tool looks and frees."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project
from tests.promises.conftest import Desk
from tests.small_disks import small_disk
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = bytes(4096)
PAGES = 256


@pytest.fixture
def small(tmp_path: Path, ssh_key: Path) -> Iterator[Desk]:
    """A prepared project whose server has a disk of 48 MiB."""
    with (
        small_disk(tmp_path / "machine" / "home", "size=48m"),
        TestServer("first", tmp_path / "machine", ssh_key) as it,
    ):
        desk = Desk(make_project(tmp_path / "project", [it]), {"first": it})
        desk.does("prepare")
        yield desk


def fill(desk: Desk) -> Path:
    """Leave no page free on the disk; return the file that takes it."""
    big = desk.there() / "big.txt"
    with suppress(OSError), big.open("ab", buffering=0) as file:
        while True:
            file.write(PAGE * PAGES)
    with suppress(OSError), big.open("ab", buffering=0) as file:
        while True:
            file.write(PAGE)
    return big


def test_a_command_looks_and_frees(small: Desk) -> None:
    big = fill(small)
    assert "big.txt" in small.does("run", "--cmd", "ls")
    assert "100%" in small.does("shell", "--", "df", ".")
    assert small.tries("run", "--cmd", "echo more > more.txt").returncode == 1
    small.does("run", "--cmd", "rm big.txt")
    assert not big.exists()


def test_clean_frees_the_space_of_ended_jobs(small: Desk) -> None:
    small.does("job-run", "--follow", "--cmd", "head -c 3000000 /dev/zero | base64")
    (job,) = (small.there() / ".jobs").glob("2*")
    fill(small)
    small.does("clean", "--yes")
    assert not job.exists()
    assert shutil.disk_usage(small.there()).free > 2_000_000
    assert small.jobs() == []


def test_clean_frees_the_space_of_jobs_that_printed_nothing(small: Desk) -> None:
    small.does("job-run", "--follow", "--cmd", "true")
    fill(small)
    small.does("clean", "--yes")
    assert not list((small.there() / ".jobs").glob("2*"))


def test_a_client_with_another_agent_looks_and_frees(small: Desk) -> None:
    """As after an upgrade of remote-tool: its agent cannot be sent."""
    small.does("job-run", "--follow", "--cmd", "echo words of the job")
    for agent in (small.there() / ".remote-scripts").glob("supervisor-*"):
        shutil.rmtree(agent)
    big = fill(small)
    assert small.job(1)["state"] == "succeeded"
    assert "words of the job" in small.does("job-tail", "--job", "1")
    assert "big.txt" in small.does("run", "--cmd", "ls")
    assert "big.txt" in small.does("shell", "--", "ls")
    small.does("top", "--once")
    small.does("gpus")
    assert "No space left on device" in small.refuses("job-run", "--cmd", "true")
    assert small.job(2)["state"] == "failed"
    small.does("clean", "--yes")
    assert not list((small.there() / ".jobs").glob("2*"))
    small.does("run", "--cmd", "rm big.txt")
    assert not big.exists()
    small.does("job-run", "--follow", "--cmd", "true")


@pytest.mark.row(28)
def test_a_job_on_a_full_disk_is_stopped_and_its_end_is_recorded(small: Desk) -> None:
    small.does("job-run", "--cmd", "exec sleep 1000")
    small.waits_for(1, "running")
    fill(small)
    small.does("job-kill", "1", "--yes")
    job = small.waits_for(1, "killed")
    assert (job["signal"], job["exit_code"]) == ("SIGTERM", None)


def test_what_had_no_space_says_so(small: Desk) -> None:
    small.does("job-run", "--cmd", "cat /dev/zero > big.txt")
    assert "the project's disk is full" in small.waits_for(1, "failed")["reason"]
    (small.there() / "big.txt").unlink()
    small.does("job-run", "--cmd", "echo more > /dev/full")
    assert "its output says: No space left on device" in small.waits_for(2, "failed")["reason"]
    small.does("job-run", "--cmd", "echo wrong; false")
    assert "space" not in str(small.waits_for(3, "failed")["reason"])


def test_the_disk_of_the_project_is_named_with_its_own_type_and_space(small: Desk, tmp_path: Path) -> None:
    """The project's folder may be on another disk than the home."""
    with small_disk(tmp_path / "other", "size=5g"):
        shutil.copytree(small.there(), tmp_path / "other" / "project", symlinks=True)
        shutil.rmtree(small.there())
        small.there().symlink_to(tmp_path / "other" / "project")
        (server,) = json.loads(small.tries("check", "--json").stdout)["servers"]
        (disk,) = [each for each in server["checks"] if each["name"] == "disk"]
        assert disk["value"].startswith(("5.0 GiB free, tmpfs", "4.9 GiB free, tmpfs"))
        (sample,) = json.loads(small.does("top", "--once", "--json"))["servers"]
        assert (sample["disk_kind"], sample["disk_total"]) == ("tmpfs", 5 << 30)
        assert "G tmpfs" in small.does("top", "--once")


def test_job_show_has_no_empty_line_where_a_full_disk_left_no_output(small: Desk) -> None:
    small.tries("job-run", "--follow", "--cmd", "cat /dev/zero > big.txt 2>/dev/null")
    shown = small.does("job-show", "1")
    assert "error      the project's disk is full\n" in shown
    assert all(line.strip() for line in shown.splitlines()), shown
