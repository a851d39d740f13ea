"""What a run that is killed had made is removed by the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.leftovers import remove_leftovers, traces
from tests.small_disks import small_disk

if TYPE_CHECKING:
    import pytest

RUN = """
import sys
from pathlib import Path
from tests.leftovers import new_name
from tests.small_disks import small_disk
store = Path(sys.argv[2], new_name())
store.mkdir()
with small_disk(Path(sys.argv[1], "disk"), "size=64k"):
    print(store.name, flush=True)
    sys.stdin.read()
"""


def test_the_next_run_removes_what_a_killed_one_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "probe", "size=64k"):
        pass
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = [sys.executable, "-c", RUN, str(tmp_path / "run"), str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as run:
        assert run.stdout is not None
        name = run.stdout.readline().decode().strip()
        mark = name.partition("n")[0] + "n"
        # Once it is killed, other tests that begin now may remove it too.
        assert len(traces(mark)) == 1
        run.kill()
    remove_leftovers()
    assert traces(mark) == []
    assert not (tmp_path / name).exists()
