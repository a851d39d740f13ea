"""The way home from copies: a project that was moved, with a link in its old place or without; odd file systems."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.frozen import copies, guests, home
from remote_tool.agent.requests import Folders

if TYPE_CHECKING:
    from pathlib import Path

JOBS, SCRIPTS = ".remote-jobs", ".remote-scripts"


def folders_of(project: Path) -> Folders:
    return Folders(str(project), str(project / JOBS), str(project / SCRIPTS))


def take_in(project: Path) -> copies.Copy:
    """Return the copy of a project's state, with its links."""
    holder = copies.Copies(folders_of(project))
    copy = holder.take("")
    os.close(holder.folder)
    assert copy is not None
    return copy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one sent file and data that was not sent."""
    folder = tmp_path / "before"
    for name in (JOBS, f"{SCRIPTS}/copies", "src", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "src" / "part.txt").write_text("old\n")
    (folder / "data" / "set.bin").write_text("data\n")
    status = (folder / "src" / "part.txt").stat()
    (folder / SCRIPTS / "sent").write_bytes(b"%d %d src/part.txt" % (status.st_size, int(status.st_mtime)))
    return folder


@pytest.mark.parametrize("is_linked", [True, False], ids=["a link in the old place", "no link"])
def test_output_that_is_linked_from_a_moved_project_comes_home(project: Path, *, is_linked: bool) -> None:
    copy = take_in(project)
    home.enter(copy, "job", guests.ProjectJobs(str(project / JOBS)))
    (project / copy.code / "out").mkdir()
    (project / copy.code / "out" / "model.pt").write_text("model\n")
    # As the end of another job in the same copy leaves it.
    (project / "out").symlink_to(f"{copy.code}/out")
    after = project.with_name("after")
    shutil.move(project, after)
    if is_linked:
        project.symlink_to(after)
    moved = copies.copy_of(folders_of(after), copy.name)
    assert moved is not None
    told = home.bring(moved, guests.ProjectJobs(str(after / JOBS)), "job").describe(copy.name)
    assert told == []
    assert not (after / "out").is_symlink()
    assert (after / "out" / "model.pt").read_text() == "model\n"
    assert sorted(path.name for path in after.iterdir()) == [JOBS, SCRIPTS, "data", "out", "src"]


def test_a_copy_of_a_moved_project_has_its_data(project: Path) -> None:
    copy = take_in(project)
    after = project.with_name("after")
    shutil.move(project, after)
    moved = take_in(after)
    assert moved.name == copy.name
    assert (after / moved.code / "data" / "set.bin").read_text() == "data\n"
    assert (after / moved.code / JOBS).readlink() == after / JOBS


def test_a_sent_file_that_a_job_changed_stays_in_its_copy_without_hard_links(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links")

    copy = take_in(project)
    home.enter(copy, "job", guests.ProjectJobs(str(project / JOBS)))
    changed = project / copy.code / "src" / "part.txt"
    changed.write_text("changed\n")
    monkeypatch.setattr(os, "link", refuse)
    for job_id in ("job", ""):
        home.bring(copy, guests.ProjectJobs(str(project / JOBS)), job_id)
        assert changed.read_text() == "changed\n"
        assert {path.name: path.read_text() for path in (project / "src").iterdir()} == {
            "part.txt": "old\n",
            "part.txt.job": "changed\n",
        }


def test_a_folder_of_another_user_is_linked_from_the_project_until_it_can_move(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = take_in(project)
    home.enter(copy, "job", guests.ProjectJobs(str(project / JOBS)))
    folder = project / copy.code / "out"
    folder.mkdir()
    (folder / "model.pt").write_text("model\n")
    rename = os.rename

    def refuse(old: str, new: str) -> None:
        if old == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(old, new)

    jobs = guests.ProjectJobs(str(project / JOBS))
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        for job_id in ("job", ""):
            assert home.bring(copy, jobs, job_id).stuck == [("out", "Permission denied")]
            assert (project / "out" / "model.pt").read_text() == "model\n"
    assert home.bring(copy, jobs).stuck == []
    assert not (project / "out").is_symlink()
    assert (project / "out" / "model.pt").read_text() == "model\n"
