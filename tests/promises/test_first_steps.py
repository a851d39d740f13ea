"""The first steps of everybody: send, run, start, list."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


def test_a_job_runs_from_the_files_that_were_sent_and_its_output_stays_there(desk: Desk) -> None:
    (desk.root / "train.py").write_text("open('made.txt', 'w').write('42')\n")
    desk.does("job-run", "--follow", "--cmd", "python train.py")
    assert desk.job(1)["exit_code"] == 0
    desk.does("rsync")
    assert (desk.there() / "made.txt").read_text() == "42"


def test_a_script_without_its_interpreter_runs_with_python(desk: Desk) -> None:
    (desk.root / "train.py").write_text("import sys; print(sys.argv[1:])\n")
    assert desk.does("run", "--cmd", "python hello.py") == "hello\n"
    desk.does("job-run", "train.py", "--lr", "a b")
    desk.waits_for(1, "succeeded")
    assert desk.job(1)["command"] == "python train.py --lr 'a b'"
    assert desk.does("job-tail", "1") == "['--lr', 'a b']\n"
    assert desk.does("run", "--cmd", "train.py 2") == "['2']\n"


def test_check_finds_the_python_of_a_prepared_server_that_gets_a_launch_command(desk: Desk) -> None:
    (server,) = desk.settings()["servers"].values()
    desk.configure(servers={"first": {**server, "launch": "env"}}, environment=None)
    told = desk.tries("check")
    assert "has no Python" not in told.stdout + told.stderr, told.stdout
    desk.does("prepare")
