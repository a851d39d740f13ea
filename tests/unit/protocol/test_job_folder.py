from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.protocol import job_folder
from remote_tool.protocol.job_folder import FolderError
from remote_tool.protocol.records import ENDED, RecordError

from .test_records import JOB, RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """An open job folder; its path is tmp_path/job."""
    descriptor = job_folder.create_folder(str(tmp_path / "job"))
    yield descriptor
    os.close(descriptor)


@pytest.mark.row(22)
def test_the_first_final_record_stays(folder: int) -> None:
    """A terminal record is never overwritten."""
    assert job_folder.write_record(folder, ENDED, {**RECORDS[ENDED], "reason": "first"})
    assert not job_folder.write_record(folder, ENDED, {**RECORDS[ENDED], "reason": "second"})
    found = job_folder.read_record(folder, ENDED, JOB)
    assert found is not None
    assert found["reason"] == "first"


def test_a_file_system_without_hard_links_keeps_the_first_record_too(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert job_folder.write_record(folder, ENDED, {**RECORDS[ENDED], "reason": "first"})
    assert not job_folder.write_record(folder, ENDED, {**RECORDS[ENDED], "reason": "second"})


@pytest.mark.row(11)
def test_a_write_that_fails_leaves_the_record_before_it_and_no_litter(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a torn record under the real name."""
    job_folder.write_record(folder, ENDED, RECORDS[ENDED])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="input/output"):
        job_folder.write_record(folder, ENDED, {**RECORDS[ENDED], "reason": "new"}, replace=True)
    found = job_folder.read_record(folder, ENDED, JOB)
    assert found is not None
    assert found["reason"] == ""
    assert os.listdir(folder) == [ENDED]


@pytest.mark.row(109)
def test_links_and_pipes_are_not_read(folder: int, tmp_path: Path) -> None:
    """A planted link leads nowhere, and a pipe does not block."""
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "job" / ENDED).symlink_to(tmp_path / "secret.json")
    (tmp_path / "job" / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "job" / "pipe")
    with pytest.raises(RecordError):
        job_folder.read_record(folder, ENDED, JOB)
    for path in ("folder/secret.json", "pipe"):
        with pytest.raises(OSError, match=r"."):
            job_folder.open_file_beneath(folder, path)


def test_a_huge_record_is_not_read(folder: int, tmp_path: Path) -> None:
    with (tmp_path / "job" / ENDED).open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(RecordError, match="larger than"):
        job_folder.read_record(folder, ENDED, JOB)


@pytest.mark.row(113)
def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o277):
        before = os.umask(umask)
        try:
            jobs = job_folder.open_jobs_folder(str(tmp_path / f"jobs{umask}"), create=True)
            assert jobs is not None
            os.close(job_folder.create_file(jobs, "file"))
        finally:
            os.umask(before)
        assert os.fstat(jobs).st_mode & 0o777 == 0o700
        assert os.stat("file", dir_fd=jobs).st_mode & 0o777 == 0o600
        os.close(jobs)


@pytest.mark.row(113)
def test_an_open_jobs_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir(mode=0o755)
    jobs = job_folder.open_jobs_folder(str(tmp_path / "jobs"))
    assert jobs is not None
    os.close(jobs)
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o700


@pytest.mark.row(113)
def test_a_jobs_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "jobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="symbolic link"):
        job_folder.open_jobs_folder(str(tmp_path / "jobs"), create=True)


@pytest.mark.row(113)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_jobs_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    os.chown(tmp_path / "jobs", 12345, 12345)
    with pytest.raises(FolderError, match="belongs to user 12345"):
        job_folder.open_jobs_folder(str(tmp_path / "jobs"), create=True)
