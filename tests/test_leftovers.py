"""A run that is killed leaves nothing that goes on, and what it had is removed by the next."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.leftovers import remove_leftovers, traces
from tests.small_disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = """
import sys
from pathlib import Path
from tests.leftovers import new_name
from tests.small_disks import small_disk
from tests.sshd import TestServer
folder = Path(sys.argv[1])
store = Path(sys.argv[3], new_name())
store.mkdir()
with small_disk(folder / "disk", "size=64k"), TestServer("first", folder / "server", Path(sys.argv[2])) as server:
    print(store.name, server.process.pid, flush=True)
    sys.stdin.read()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to end what a killed run has started")
def test_the_next_run_removes_what_a_killed_one_has_left(
    tmp_path: Path, ssh_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "probe", "size=64k"):
        pass
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = [sys.executable, "-c", RUN, str(tmp_path / "run"), str(ssh_key), str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as run:
        assert run.stdout is not None
        name, sshd = run.stdout.readline().decode().split()
        run.kill()
    wait_until(lambda: not Path(f"/proc/{sshd}").exists())
    mark = name.partition("n")[0] + "n"
    assert len(traces(mark)) == 1
    remove_leftovers()
    assert traces(mark) == []
    assert not (tmp_path / name).exists()
