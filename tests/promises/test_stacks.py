"""Where the processes of a job are, seen without harm to any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running
from tests.promises.conftest import until

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

HANGS = "import os, time\ndef hang():\n    open('pids', 'a').write(f'{os.getpid()}\\n')\n    time.sleep(1000)\nhang()\n"


def pids(desk: Desk) -> list[int]:
    file = desk.there() / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


@pytest.mark.row(219)
def test_a_process_that_does_not_expect_the_signal_goes_on_and_is_listed_with_the_reason(desk: Desk) -> None:
    (desk.root / "hangs.py").write_text(HANGS)
    desk.does("job-run", "--cmd", "python hangs.py & python -S hangs.py & python -I -S hangs.py")
    until(lambda: len(pids(desk)) == 3, "all hang")
    shown = desk.does("job-stacks", "1")
    assert shown.count("hang (hangs.py:4)") == 1
    assert "2 processes: it was started with python -I, -S or -E" in shown
    assert [pid for pid in pids(desk) if not is_running(pid)] == []
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", "1", "--yes")


@pytest.mark.row(220)
def test_the_users_own_start_up_file_of_python_is_loaded_in_a_job(desk: Desk) -> None:
    (desk.root / "own").mkdir()
    (desk.root / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = 'of the user'\n")
    command = "PYTHONPATH=own:$PYTHONPATH python -c 'print(OWN)'; PYTHONPATH=$PYTHONPATH:own python -c 'print(OWN)'"
    assert desk.does("job-run", "--follow", "--cmd", command) == "of the user\nof the user\n"
