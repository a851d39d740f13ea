"""Files arrive whatever their names are."""

from __future__ import annotations

import os
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
