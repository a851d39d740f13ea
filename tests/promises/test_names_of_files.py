"""Files arrive whatever their names are."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

# Every first byte of a name, printable or not.
FIRST = [os.fsdecode(bytes([byte])) for byte in range(1, 256) if byte != ord("/")]


def contents(folder: Path, names: list[str]) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in names if (folder / name).is_file()}


def test_files_and_folders_arrive_whatever_their_names_begin_with(desk: Desk) -> None:
    names = [f"{first}file" for first in FIRST] + [f"{first}folder/{first}in" for first in FIRST]
    for round_ in ("first", "edited"):
        for name in names:
            path = desk.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{round_} {name!r}\n")
        desk.does("rsync")
        assert contents(desk.there(), names) == contents(desk.root, names)
    # Files that a job changed are not replaced, and are fetched by the same names.
    for name in names[::7]:
        (desk.there() / name).write_text("by a job")
    desk.does("rsync")
    assert contents(desk.there(), names[::7]) == dict.fromkeys(names[::7], "by a job")
    desk.does("rsync", "--overwrite")
    assert contents(desk.there(), names) == contents(desk.root, names)
    for name in names:
        (desk.root / name).unlink()
    desk.does("rsync")
    assert contents(desk.there(), names) == {}


def test_a_file_whose_place_a_folder_with_output_has_is_named_and_the_rest_is_sent(desk: Desk) -> None:
    (desk.there() / "out").mkdir()
    (desk.there() / "out" / "model.pt").write_text("weights")
    (desk.root / "out").write_text("a file here")
    for round_ in ("first", "second, edited"):
        (desk.root / "other.py").write_text(round_)
        for words in (("rsync",), ("rsync", "--overwrite")):
            said = desk.refuses(*words)
            assert "some files were not sent: a folder on the server, with files of its own: out" in said
            assert "remote-tool run --server first --cmd 'mv out out.old'" in said
            assert "permission" not in said
        assert (desk.there() / "other.py").read_text() == round_
    assert (desk.there() / "out" / "model.pt").read_text() == "weights"
    assert desk.refuses("job-run", "--cmd", "true")
    desk.does("run", "--cmd", "mv out out.old")
    desk.does("rsync")
    assert (desk.there() / "out").read_text() == "a file here"


def test_a_file_named_as_our_folders_is_named_where_it_is_not_sent(desk: Desk) -> None:
    for name in ("sub/.remote", "sub/.jobs"):
        (desk.root / name).parent.mkdir(exist_ok=True)
        (desk.root / name).write_text("a file")
    (desk.root / "deep" / ".remote").mkdir(parents=True)
    (desk.root / "deep" / ".remote" / "configs.yaml").write_text("of another project")
    said = desk.tries("rsync").stderr
    assert "sub/.remote is never sent" in said
    assert "sub/.jobs is never sent" in said
    assert "deep" not in said
    assert not (desk.there() / "sub" / ".remote").exists()
    assert not (desk.there() / "deep" / ".remote").exists()


def test_a_name_with_escapes_is_written_out_in_the_log_and_record_of_its_job(desk: Desk) -> None:
    name = "out\x1b]0;owned\x07\nremote-tool: all came home\u202e\x9b2J"
    go = desk.there().parent / f"go-{desk.there().name}"
    write = f"until [ -e {go} ]; do sleep 0.1; done; printf new > {shlex.quote(name)}"
    desk.does("job-run", "--frozen", "--cmd", write)
    desk.waits_for(1, "running")
    (desk.there() / name).write_text("taken meanwhile")
    go.touch()
    job = desk.waits_for(1, "succeeded")
    (log,) = desk.there().glob(".jobs/*/job.err")
    written = "kept beside the project's own: out\\x1b]0;owned\\x07\\nremote-tool: all came home\\u202e\\x9b2J."
    assert log.read_bytes().splitlines()[-1].startswith(f"remote-tool: {written}".encode())
    assert log.read_bytes().count(b"\n") == 1
    assert written in job["reason"]
    tail = desk.tries("job-tail", "1", "--no-follow")
    listed = desk.tries("clean", "--dry-run")
    for text in (tail.stdout, tail.stderr, listed.stdout, listed.stderr, desk.does("job-show", "1")):
        assert "\x1b" not in text
        assert "\nremote-tool: all came home" not in text


def test_empty_records_of_syncs_after_a_power_cut_call_no_file_changed(desk: Desk) -> None:
    for name in ("a.py", "b.py"):
        (desk.root / name).write_text("first\n")
    desk.does("rsync")
    for name in ("sync", "sent"):
        (desk.there() / ".remote-scripts" / name).write_bytes(b"")
    (desk.root / "a.py").write_text("edited, and longer\n")
    desk.does("rsync")
    assert (desk.there() / "a.py").read_text() == "edited, and longer\n"
    (desk.there() / ".remote-scripts" / "sent").write_bytes(b"")
    (desk.root / "b.py").unlink()
    desk.does("rsync")
    (desk.root / "a.py").write_text("edited again\n")
    desk.does("rsync")
    assert (desk.there() / "a.py").read_text() == "edited again\n"
