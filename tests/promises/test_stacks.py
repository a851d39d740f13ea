"""Where the processes of a job are, seen without harm to any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes import is_running, read_of
from tests.promises.conftest import until

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

HANGS = "import os, time\ndef hang():\n    open('pids', 'a').write(f'{os.getpid()}\\n')\n    time.sleep(1000)\nhang()\n"


def pids(desk: Desk) -> list[int]:
    file = desk.there() / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def state_of(pid: int) -> str:
    return read_of(pid, "stat").rpartition(b") ")[2][:1].decode()


# Programs that once expected the signal, and one that cannot answer.
FORGETS = f"import faulthandler\nfor number in range(34, 65): faulthandler.unregister(number)\n{HANGS}"
CLOSES = f"import os\nos.closerange(3, 4096)\ndata = [open('data', 'w') for _ in range(300)]\n{HANGS}"
STOPS = HANGS.replace("time.sleep(1000)", "os.kill(os.getpid(), 19)")


@pytest.mark.row(219)
def test_a_process_that_does_not_expect_the_signal_goes_on_and_is_listed_with_the_reason(desk: Desk) -> None:
    for name, text in {"hangs": HANGS, "forgets": FORGETS, "closes": CLOSES, "stops": STOPS}.items():
        (desk.root / f"{name}.py").write_text(text)
    programs = ("hangs.py", "-S hangs.py", "-I -S hangs.py", "forgets.py", "closes.py", "stops.py")
    desk.does("job-run", "--cmd", " & ".join(f"python {program}" for program in programs) + "; wait")
    until(lambda: len(pids(desk)) == len(programs), "all hang")
    until(lambda: any(state_of(pid) == "T" for pid in pids(desk)), "one has stopped")
    with desk.runs_meanwhile("job-stacks", "1") as asking:
        shown, _ = asking.communicate(timeout=60)
    assert shown.count("hang (hangs.py:4)") == 1
    assert "4 processes: it was started with python -I, -S or -E" in shown
    assert "it is stopped" in shown
    assert [pid for pid in pids(desk) if not is_running(pid)] == []
    assert (desk.there() / "data").read_bytes() == b""
    assert desk.job(1)["state"] == "running"
    desk.does("job-kill", "1", "--yes")


@pytest.mark.row(220)
def test_the_users_own_start_up_file_of_python_is_loaded_in_a_job(desk: Desk) -> None:
    (desk.root / "own").mkdir()
    (desk.root / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = 'of the user'\n")
    command = "PYTHONPATH=own:$PYTHONPATH python -c 'print(OWN)'; PYTHONPATH=$PYTHONPATH:own python -c 'print(OWN)'"
    assert desk.does("job-run", "--follow", "--cmd", command) == "of the user\nof the user\n"


@pytest.mark.row(220)
def test_a_program_has_the_descriptors_that_it_has_without_us(desk: Desk) -> None:
    shows = "-c 'import os; print(os.open(\"/dev/null\", 0))'"
    first, second = desk.does("job-run", "--follow", "--cmd", f"python {shows}; python -S {shows}").split()
    assert first == second


@pytest.mark.row(220)
def test_where_stacks_cannot_be_prepared_a_program_runs_as_without_us(desk: Desk) -> None:
    (desk.root / "takes.py").write_text(
        "import pathlib, site\n"
        "folder = pathlib.Path(site.getusersitepackages())\n"
        "folder.mkdir(parents=True)\n"
        "(folder / 'taken.pth').write_text('import sys; sys.modules[\"faulthandler\"] = None\\n')\n"
    )
    command = (
        "python=$(python -c 'import sys; print(sys._base_executable)'); export PYTHONUSERBASE=$PWD/base; "
        '"$python" takes.py; "$python" -c "import sys; print(sys.modules[\'faulthandler\'])"'
    )
    ran = desk.tries("job-run", "--follow", "--cmd", command)
    assert ran.stdout == "None\n"
    assert "sitecustomize" not in ran.stderr
