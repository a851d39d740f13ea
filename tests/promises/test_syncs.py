"""What a sync leaves alone on a server, and says."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


@pytest.mark.row(146)
@pytest.mark.parametrize("comes_back", ["as new", "as it was"])
def test_what_a_job_made_of_a_file_outlives_its_removal_and_its_return_here(desk: Desk, comes_back: str) -> None:
    here, there, aside = desk.root / "notes.csv", desk.there() / "notes.csv", desk.root.parent / "aside"
    here.write_text("step,loss\n1,0.50\n")
    desk.does("rsync")
    desk.does("run", "--cmd", "printf 'step\\n1\\n' > notes.csv")
    shutil.move(here, aside)
    desk.does("rsync")
    assert there.read_text() == "step\n1\n"
    if comes_back == "as new":
        here.write_text("step,loss\n1,0.50\n")
        os.utime(here, (time.time() + 60, time.time() + 60))
        said = desk.refuses("rsync", status=1)
        assert "notes.csv" in said
        assert "--overwrite" in said
    else:
        shutil.move(aside, here)
        assert "notes.csv" in desk.tries("rsync").stderr
    assert there.read_text() == "step\n1\n"
    desk.does("rsync", "--overwrite")
    assert there.read_text() == here.read_text()


@pytest.mark.row(146)
def test_what_no_sync_has_sent_is_kept_and_named_whatever_the_clocks_say(desk: Desk) -> None:
    there = desk.there() / "result.txt"
    there.write_text("a result of a slow clock")
    os.utime(there, (time.time() - 3600, time.time() - 3600))
    (desk.root / "result.txt").write_text("an older result, of a clock that is right")
    ran = desk.tries("rsync")
    assert ran.returncode == 0
    assert "result.txt" in ran.stderr
    assert "--overwrite" in ran.stderr
    assert there.read_text() == "a result of a slow clock"
