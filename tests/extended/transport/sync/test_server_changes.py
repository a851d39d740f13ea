"""What somebody else than a sync wrote on the server is not overwritten: kept or refused, and named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import SyncError
from remote_tool.transport.pool import HostPool
from remote_tool.transport.sync import server_script
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.server_tools import rename
from tests.extended.transport.sync.test_push import Desk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import MakeServer

pytestmark = pytest.mark.row(146)
EARLY, LATE = 1_700_000_000, 1_800_000_000


@pytest.fixture
def desk(make_server: MakeServer, tmp_path: Path) -> Desk:
    server = make_server()
    desk = Desk(make_configuration([server], tmp_path / "project"), server)
    desk.write("train.py")
    return desk


@pytest.fixture
def laptop(desk: Desk, tmp_path: Path) -> Desk:
    """A second checkout of the same project."""
    other = Desk(make_configuration([desk.server], tmp_path / "laptop"), desk.server)
    other.write("train.py")
    return other


def put(path: Path, text: str, modified: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (modified, modified))
    return path


async def labels_of(desk: Desk) -> list[str]:
    """Sync; return what was run on the server."""
    labels: list[str] = []
    async with HostPool(desk.config, trace=lambda _server, label, _seconds: labels.append(label)) as pool:
        (await sync(pool, desk.config, ("first",), SyncOptions(), desk.events.append)).raise_if_any_failed()
    return [label for label in labels if not label.startswith("log in")]


async def test_a_checkpoint_that_was_copied_home_does_not_replace_a_later_one(desk: Desk) -> None:
    await desk.sync()
    there = put(desk.copy / "checkpoints" / "last.pt", "step 5", EARLY)
    put(desk.project / "checkpoints" / "last.pt", "step 5", EARLY)
    put(there, "step 12", LATE)
    result = await desk.sync()
    assert result.sent == ()
    assert there.read_text() == "step 12"
    assert "checkpoints/last.pt" in desk.notices
    assert "--overwrite" in desk.notices
    assert desk.state == f"complete {result.snapshot}\n"


async def test_what_a_job_appends_to_is_kept_and_named_once(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    put(desk.copy / "results.csv", "step,loss\n1,0.5\n", LATE)
    desk.write("train.py", "edited\n")
    assert (await desk.sync()).sent == ("train.py",)
    assert desk.notices.count("results.csv") == 1
    for number in range(3):
        put(desk.copy / "results.csv", "step,loss\n1,0.5\n" + "more\n" * number, LATE + number)
        desk.write("train.py", f"edited again {number}\n")
        assert (await desk.sync()).sent == ("train.py",)
        assert await labels_of(desk) == ["rsync"]
    assert (desk.copy / "results.csv").read_text() == "step,loss\n1,0.5\nmore\nmore\n"
    assert desk.notices.count("results.csv") == 1


@pytest.mark.parametrize("has_synced", [False, True])
async def test_of_a_copy_that_was_made_by_hand_what_differs_is_kept_whatever_its_time(
    desk: Desk, *, has_synced: bool
) -> None:
    if has_synced:
        await desk.sync()
    for name, text, modified in [
        ("older", "aaa", EARLY),
        ("larger", "longer than here", EARLY),
        ("newer", "bbb", LATE),
        ("same text", "here", LATE),
        ("same", "here", EARLY + 1),
    ]:
        put(desk.copy / name, text, modified)
        put(desk.project / name, "here", EARLY + 1)
    await desk.sync()
    texts = {path.name: path.read_text() for path in desk.copy.iterdir() if path.is_file()}
    kept = {"older": "aaa", "larger": "longer than here", "newer": "bbb"}
    assert texts == {"train.py": "text\n", "same text": "here", "same": "here", **kept}
    assert "kept the server's version, changed or made there: larger, newer, older " in desk.notices
    assert (await desk.sync()).sent == ()


async def test_files_changed_on_both_sides_are_refused_and_the_rest_is_sent(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    put(desk.copy / "results.csv", "a job's\n", LATE)
    desk.write("results.csv", "mine\n")
    for _ in range(2):
        desk.write("train.py", "edited\n")
        with pytest.raises(
            SyncError, match=r"changed both here and on the server since the last sync: results\.csv"
        ) as caught:
            await desk.sync()
        assert "--overwrite" in caught.value.hint
        assert "job-pull" in caught.value.hint
        assert (desk.copy / "results.csv").read_text() == "a job's\n"
        assert (desk.copy / "train.py").read_text() == "edited\n"
        assert desk.state.startswith("incomplete "), "no job starts without a sync either"


@pytest.mark.parametrize("way", ["overwrite", "take theirs", "remove theirs"])
async def test_what_was_refused_is_settled_by_either_side(desk: Desk, way: str) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    there = put(desk.copy / "results.csv", "a job's\n", LATE)
    desk.write("results.csv", "mine\n")
    with pytest.raises(SyncError):
        await desk.sync()
    if way == "take theirs":
        desk.write("results.csv", there.read_text())
    if way == "remove theirs":
        there.unlink()
    result = await desk.sync(overwrite=way == "overwrite")
    assert there.read_text() == (desk.project / "results.csv").read_text()
    assert desk.state == f"complete {result.snapshot}\n"
    assert (await desk.sync()).sent == ()
    desk.write("results.csv", "edited later\n")
    assert (await desk.sync()).sent == ("results.csv",)


async def test_overwrite_replaces_what_was_kept(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    there = put(desk.copy / "results.csv", "a job's\n", LATE)
    await desk.sync()
    assert there.read_text() == "a job's\n"
    assert (await desk.sync(overwrite=True)).sent == ("results.csv",)
    assert there.read_text() == "step,loss\n"
    assert (await desk.sync(overwrite=True)).sent == ()
    assert (await desk.sync()).sent == ()


async def test_a_kept_file_removed_on_the_server_is_sent(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    there = put(desk.copy / "results.csv", "a job's\n", LATE)
    await desk.sync()
    there.unlink()
    assert (await desk.sync()).sent == ("results.csv",)
    assert there.read_text() == "step,loss\n"


@pytest.mark.parametrize("is_in_the_way", [False, True])
async def test_what_was_changed_there_is_remembered_as_sent_while_it_is_gone_here(
    desk: Desk, *, is_in_the_way: bool
) -> None:
    desk.write("results", "step,loss\n")
    await desk.sync()
    there = put(desk.copy / "results", "a job's\n", LATE)
    (desk.project / "results").unlink()
    for number in range(2):
        desk.write("results/mine.csv" if is_in_the_way else "mine.csv", "x" * number)
        results = await desk.results()
        assert (results.errors != {}) == is_in_the_way
    if is_in_the_way:
        (desk.project / "results" / "mine.csv").unlink()
        (desk.project / "results").rmdir()
    desk.write("results", "made again\n")
    with pytest.raises(SyncError, match="changed both here and on the server since the last sync: results"):
        await desk.sync()
    assert there.read_text() == "a job's\n"
    there.unlink()
    assert (await desk.sync()).sent == ("results",)


@pytest.mark.parametrize("was_sent", [False, True])
async def test_a_kept_file_that_is_edited_here_is_refused(desk: Desk, *, was_sent: bool) -> None:
    if was_sent:
        put(desk.project / "last.pt", "step 1", EARLY - 1)
    await desk.sync()
    there = put(desk.copy / "last.pt", "step 12", LATE)
    put(desk.project / "last.pt", "step 5" if not was_sent else "step 1", EARLY - (1 if was_sent else 0))
    await desk.sync()
    put(desk.project / "last.pt", "step 7, with notes", LATE + 1)
    with pytest.raises(SyncError, match=r"last\.pt"):
        await desk.sync()
    assert there.read_text() == "step 12"


async def test_a_kept_file_removed_here_stays_on_the_server(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    there = put(desk.copy / "results.csv", "a job's\n", LATE)
    await desk.sync()
    (desk.project / "results.csv").unlink()
    assert (await desk.sync()).removed == ()
    assert there.read_text() == "a job's\n"


async def test_a_second_laptop_replaces_what_the_first_sent_and_keeps_what_the_server_wrote(
    desk: Desk, laptop: Desk
) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    laptop.write("train.py", "the other laptop's\n")
    put(laptop.project / "results.csv", "step,loss\n", int((desk.project / "results.csv").stat().st_mtime))
    put(desk.copy / "results.csv", "a job's\n", LATE)
    assert (await laptop.sync()).sent == ("train.py",)
    assert "results.csv" in laptop.notices
    assert (await desk.sync()).sent == ("train.py",)
    assert (desk.copy / "train.py").read_text() == "text\n"
    assert (desk.copy / "results.csv").read_text() == "a job's\n"
    # A version that neither the server has got nor this laptop has sent: who is right, nobody can tell.
    put(laptop.project / "results.csv", "something else\n", EARLY)
    with pytest.raises(SyncError, match=r"results\.csv"):
        await laptop.sync()
    assert (desk.copy / "results.csv").read_text() == "a job's\n"


async def test_the_same_text_with_another_time_is_unchanged(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    put(desk.copy / "results.csv", "copied home\n", LATE)
    desk.write("results.csv", "copied home\n")
    await desk.sync()
    assert desk.notices == ""
    assert int((desk.copy / "results.csv").stat().st_mtime) == int((desk.project / "results.csv").stat().st_mtime)


async def test_a_link_that_a_job_moved_on_is_kept(desk: Desk) -> None:
    (desk.project / "latest").symlink_to("train.py")
    await desk.sync()
    (desk.copy / "latest").unlink()
    (desk.copy / "latest").symlink_to("checkpoints/step-12")
    desk.write("train.py", "edited\n")
    for _ in range(2):
        await desk.sync()
        assert (desk.copy / "latest").readlink().name == "step-12"
    assert desk.notices.count("latest") == 1


async def test_a_folder_of_here_does_not_replace_a_file_of_the_server(desk: Desk) -> None:
    await desk.sync()
    put(desk.copy / "out", "a job's output", LATE)
    desk.write("out/notes.txt")
    desk.write("b.py")
    with pytest.raises(SyncError, match="not a folder on the server: out/"):
        await desk.sync()
    assert (desk.copy / "out").read_text() == "a job's output"
    assert (desk.copy / "b.py").exists()


async def test_a_dry_run_names_what_would_be_kept_and_changes_nothing(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    put(desk.copy / "results.csv", "a job's\n", LATE)
    state = desk.state
    assert (await desk.sync(dry_run=True)).sent == ()
    assert "results.csv" in desk.notices
    assert (await desk.sync(dry_run=True, overwrite=True)).sent == ("results.csv",)
    desk.write("results.csv", "mine\n")
    with pytest.raises(SyncError, match=r"results\.csv"):
        await desk.sync(dry_run=True)
    assert (desk.copy / "results.csv").read_text() == "a job's\n"
    assert desk.state == state


async def test_checksum_keeps_it_too(desk: Desk) -> None:
    desk.write("results.csv", "step,loss\n")
    await desk.sync()
    put(desk.copy / "results.csv", "a job's\n", LATE)
    assert (await desk.sync(checksum=True)).sent == ()
    assert (desk.copy / "results.csv").read_text() == "a job's\n"


async def test_a_file_that_changes_during_a_sync_causes_no_conflict_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets a version that neither its list nor the next look here knows."""
    await desk.sync()
    log = put(desk.project / "run.log", "1\n", EARLY)
    original = server_script.question

    def question(kind: str, records: bytes, *, of_all: bool = False) -> bytes:
        put(log, "1\n2\n", EARLY + 1)
        return original(kind, records, of_all=of_all)

    monkeypatch.setattr(server_script, "question", question)
    assert (await desk.sync()).sent == ("run.log",)
    monkeypatch.undo()
    assert (desk.copy / "run.log").read_text() == "1\n2\n"
    put(log, "1\n2\n3\n", EARLY + 2)
    assert (await desk.sync()).sent == ("run.log",)
    assert (desk.copy / "run.log").read_text() == "1\n2\n3\n"
    assert (await desk.sync()).sent == ()


def _without_gnu_stat(patch: pytest.MonkeyPatch) -> None:
    rename(patch, "receive", "--printf", "--no-such-option")


def _without_any_stat(patch: pytest.MonkeyPatch) -> None:
    _without_gnu_stat(patch)
    rename(patch, "list_each", "stat ", "no-such-program ")


async def test_a_server_without_the_tools_of_gnu_keeps_it_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("results.csv", "it's\na $(name).csv", "sub/deep.csv", "-"):
        desk.write(name, "step,loss\n")
    await desk.sync()
    for name in ("results.csv", "it's\na $(name).csv", "sub/deep.csv", "-"):
        put(desk.copy / name, "a job's\n", LATE)
    _without_gnu_stat(monkeypatch)
    desk.write("sub/b.py")
    assert (await desk.sync()).sent == ("sub/b.py",)
    for name in ("results.csv", "it's\na $(name).csv", "sub/deep.csv", "-"):
        assert (desk.copy / name).read_text() == "a job's\n"


async def test_a_server_that_cannot_tell_what_is_there_gets_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.sync()
    put(desk.copy / "results.csv", "a job's\n", LATE)
    put(desk.project / "results.csv", "mine\n", EARLY)
    _without_any_stat(monkeypatch)
    with pytest.raises(SyncError, match="cannot list the files"):
        await desk.sync()
    assert (desk.copy / "results.csv").read_text() == "a job's\n"


async def test_new_files_and_edits_cost_no_session_of_their_own(desk: Desk) -> None:
    assert await labels_of(desk) == ["rsync"]
    desk.write("train.py", "edited\n")
    desk.write("new.py")
    assert await labels_of(desk) == ["rsync"]
    put(desk.copy / "new.py", "a job's\n", LATE)
    assert await labels_of(desk) == ["rsync"]


ASKED = ("edit", "nothing", "removal")


@pytest.mark.parametrize("change", ASKED)
async def test_nothing_is_asked_where_nothing_can_be_in_the_way(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    desk.write("b.py")
    questions: list[str] = []
    original: Callable[..., bytes] = server_script.question

    def question(kind: str, records: bytes, *, of_all: bool = False) -> bytes:
        questions.append(kind)
        return original(kind, records, of_all=of_all)

    monkeypatch.setattr(server_script, "question", question)
    await desk.sync()
    if change == "edit":
        desk.write("b.py", "edited\n")
    if change == "removal":
        (desk.project / "b.py").unlink()
    await desk.sync()
    assert questions == []
    desk.write("c.py")
    await desk.sync()
    assert questions == [server_script.LOOK]
