"""What a fan-out wrote comes home, and lies in the project, each shard's files apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool import FanOutRequest, Workspace
from remote_tool.errors import UsageError
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

PLAY = "mkdir -p played && printf '%s\\n' {shard} $REMOTE_TOOL_SERVER > played/{shard}.txt"


def contents(folder: Path) -> dict[str, list[str]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text().split() for path in files}


@pytest.mark.slow
def test_files_of_every_shard_lie_in_the_project_and_are_sent_with_the_next_sync(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Again and again, though a server has files of the same names."""
    servers = [make_server("first"), make_server("second")]
    workspace = Workspace.find(make_project(tmp_path / "project", servers))
    workspace.prepare()
    request = FanOutRequest(PLAY, per_server=2, artifacts=("played/{shard}.txt",), gather="data/played")
    for count in (1, 2):
        answer = workspace.fan_out(request)
        name = answer.launch_id[-6:]
        assert answer.folder == workspace.root / "data" / "played" / name
        assert [path.relative_to(answer.folder).as_posix() for path in answer.gathered] == [
            f"{shard}/played/{shard}.txt" for shard in range(4)
        ]
        assert contents(answer.folder) == {
            "0/played/0.txt": ["0", "first"],
            "1/played/1.txt": ["1", "first"],
            "2/played/2.txt": ["2", "second"],
            "3/played/3.txt": ["3", "second"],
        }
        workspace.rsync()
        sent = [contents(server.home / "project" / "data" / "played") for server in servers]
        assert sent == [contents(workspace.root / "data" / "played")] * 2
        assert len(sent[0]) == 4 * count


@pytest.mark.slow
def test_of_a_shard_that_was_started_again_only_what_the_last_try_wrote_is_gathered(workspace: Workspace) -> None:
    command = f"{PLAY}; test $REMOTE_TOOL_SERVER = second"
    answer = workspace.fan_out(FanOutRequest(command, artifacts=("played/{shard}.txt",), gather="data"))
    assert answer.folder is not None
    assert {name: words[1] for name, words in contents(answer.folder).items()} == {
        "0/played/0.txt": "second",
        "1/played/1.txt": "second",
    }


@pytest.mark.slow
def test_results_that_were_not_followed_are_gathered_by_resume(workspace: Workspace) -> None:
    begun = workspace.fan_out(
        FanOutRequest(PLAY, total=2, artifacts=("played/{shard}.txt",), gather="data"), follow=False
    )
    assert begun.gathered == ()
    resumed = workspace.resume_fan_out(begun.launch_id)
    assert (resumed.undone, len(resumed.gathered)) == (0, 2)
    assert workspace.resume_fan_out(begun.launch_id).gathered == resumed.gathered


@pytest.mark.parametrize("folder", ["..", ".", "/tmp", "../elsewhere", ".remote", ".remote/jobs", "link"])
def test_a_folder_outside_of_the_project_is_refused(workspace: Workspace, tmp_path: Path, folder: str) -> None:
    link = workspace.root / "link"
    link.symlink_to(tmp_path)
    try:
        with pytest.raises(UsageError, match=f"^--gather {folder} is not a folder inside "):
            workspace.fan_out(FanOutRequest(PLAY, gather=folder))
    finally:
        link.unlink()


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("played/{item}", "--artifact: {item} is not a placeholder; use {shard}, {shards}"),
        ("played/{count}", "--artifact: {count} needs --total"),
        ("/etc/{shard}", "--artifact '/etc/0': must be a glob inside the project"),
        ("a{", "--artifact 'a{' has an unmatched brace"),
    ],
)
def test_invalid_globs_are_refused(glob: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        FanOutRequest("true", artifacts=(glob,))
    assert refused.value.message == message
