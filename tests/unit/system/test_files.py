"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from remote_tool.system.files import read_bounded, replacing, write_all_atomically, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_the_place_of_another_one(tmp_path: Path) -> None:
    for text in (b"first", b"second"):
        write_atomically(tmp_path / "a", text)
        assert read_bounded(tmp_path / "a", 100)[0] == text
    assert names(tmp_path) == ["a"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_more_than_the_bound_a_link_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert read_bounded(tmp_path / "a", 5)[0] == b"12345"
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        read_bounded(tmp_path / "a", 4)
    with pytest.raises(ValueError, match="not a plain file"):
        read_bounded(tmp_path / "pipe", 5)
    with pytest.raises(OSError, match="symbolic links"):
        read_bounded(tmp_path / "link", 5)


def test_without_overwriting_all_files_are_new_or_none_is_there(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        write_all_atomically({tmp_path / "a": b"1", tmp_path / "b": b"2", tmp_path / "c": b"3"}, overwrite=False)
    assert names(tmp_path) == ["b"]
    assert (tmp_path / "b").read_bytes() == b"theirs"


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_gets_its_name_also_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    def refuse(*_paths: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    with replacing(tmp_path / "key", mode=0o644, overwrite=False) as file:
        file.write(b"new")
    with pytest.raises(FileExistsError), replacing(tmp_path / "key", overwrite=False) as file:
        file.write(b"newer")
    assert names(tmp_path) == ["key"]
    assert (tmp_path / "key").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o644


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(TypeError), replacing(tmp_path / "a") as file:
        file.writelines([b"half of", "not bytes"])  # type: ignore[list-item]
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
