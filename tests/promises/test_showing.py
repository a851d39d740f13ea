"""What a list shows about jobs, and what is known about a single one."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.forwarding import agents_in
from tests.promises.conftest import PATIENCE, until
from tests.sshd import free_port
from tests.terminal import Terminal

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

TRAINING = """\
import os, sys, time
os.makedirs("out", exist_ok=True)
open("out/model.pt", "wb").write(b"x" * 2048)
print("epoch 1/3 loss=0.25", flush=True)
raise ValueError("lr is too high")
"""
PROGRAM = """\
import fcntl, runpy, struct, sys, termios
fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, {columns}, 0, 0))
runpy.run_module("remote_tool", run_name="__main__")
"""


# It appends to a sent file, which is then kept beside the project's own.
APPENDS = 'open("sent.txt", "a").write("more")\n'


def on_terminal(desk: Desk, columns: int, *words: str) -> str:
    """Return what the program writes to a terminal of this width."""
    with Terminal(*words, cwd=desk.root, program=["-c", PROGRAM.format(columns=columns)]) as terminal:
        assert terminal.end() == 0, terminal.text
        return terminal.text


def shown(desk: Desk, key: int) -> dict[str, Any]:
    """Return what job-show --json says of a job."""
    (job,) = json.loads(desk.does("job-show", str(key), "--json"))["jobs"]
    return dict(job)


@pytest.mark.parametrize(
    ("end", "error"),
    [('raise ValueError("lr is too high")', "ValueError: lr is too high"), ('exit("no data")', "no data")],
)
def test_what_is_kept_beside_the_projects_own_is_not_the_first_error(desk: Desk, end: str, error: str) -> None:
    (desk.root / "sent.txt").write_text("sent")
    (desk.root / "train.py").write_text(f"{APPENDS}{end}\n")
    desk.tries("job-run", "--frozen", "--follow", "--cmd", "python train.py")
    found = shown(desk, 1)
    assert "kept beside the project's own: sent.txt" in found["reason"]
    assert found["error"]["message"] == error
    text = desk.does("job-show", "1")
    assert re.search(rf"^error +{error}$", text, re.MULTILINE), text
    ran = desk.tries("helper-launch", "--frozen", "--follow", "--cmd", "python train.py")
    assert re.search(rf"first to fail: first: {error}", ran.stderr), ran.stderr


def test_the_error_of_a_job_that_printed_nothing_is_one_line(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "exec sleep 600")
    desk.waits_for(1, "running")
    (started,) = (desk.there() / ".jobs").glob("*/started.json")
    record = json.loads(started.read_text())
    for name in ("supervisor", "command"):
        os.kill(record[name]["pid"], signal.SIGKILL)
    desk.waits_for(1, "lost")
    lines = desk.does("job-show", "1").splitlines()
    (number,) = [number for number, line in enumerate(lines) if line.startswith("error ")]
    assert lines[number + 1].startswith("command "), lines


def test_everything_about_a_job_is_in_one_place(desk: Desk) -> None:
    (desk.root / "train.py").write_text(TRAINING)
    words = ("--name", "warm-up", "--tag", "t1", "--artifact", "out/*.pt", "--retries", "1", "--frozen")
    desk.does("job-run", *words, "--cmd", "python train.py")
    desk.does("job-note", "1", "too high")
    job = desk.waits_for(1, "failed")
    text = desk.does("job-show", "1")
    place = f"first:~/{desk.settings()['name']}"
    for line in (
        r"job +1  warm-up",
        rf"id +{job['id']}",
        r"state +failed, exit code 1.*",
        r"exit +1",
        r"error +ValueError: lr is too high",
        r"values +.*loss=0.25.*",
        r"command +python train.py",
        r"started +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
        r"attempts +2 of 2",
        r" +1: exit code 1",
        rf"code +.*copy {job['copy']} is on the server",
        rf"folder +{place}/.jobs/{job['id']}",
        rf"here +{re.escape(str(desk.root))}/.remote/jobs/{job['id']}",
        r"artifacts +1 file, 2.0 KiB",
        r" +2.0 KiB  out/model.pt  \(on the server\)",
        r"tags +t1",
        r"note +too high",
        r"next +remote-tool job-tail 1 --no-follow",
        r" +remote-tool job-pull 1",
        r" +remote-tool job-rerun 1",
    ):
        assert re.search(f"(?m)^{line}$", text), f"{line!r} is not in\n{text}"
    desk.does("job-pull", "1")
    known = shown(desk, 1)
    assert (known["copy_is_kept"], known["unknown"]) == (True, {})
    assert known["error"]["message"] == "ValueError: lr is too high"
    assert [(file["name"], file["size"], file["is_here"]) for file in known["artifacts"]] == [
        ("out/model.pt", 2048, True)
    ]
    assert "remote-tool job-pull 1" not in known["next"]
    assert desk.refuses("job-show", "7", status=2).startswith("error: No job '7'")


def test_what_is_not_known_is_said_when_the_server_is_away(desk: Desk) -> None:
    desk.does("job-run", "--frozen", "--artifact", "*.pt", "--follow", "--cmd", "python hello.py")
    settings = desk.settings()
    settings["servers"]["first"]["port"] = free_port()
    desk.configure(servers=settings["servers"], keep_connections=0)
    ran = desk.tries("job-show", "1")
    assert (ran.returncode, "refused the connection" in ran.stderr) == (4, True)
    assert re.search(r"(?m)^state +succeeded$", ran.stdout)
    assert re.search(r"(?m)copy [0-9a-f]+ may be on the server \(.*refused the connection\)$", ran.stdout)
    assert "remote-tool check --server first" in ran.stdout


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_terminal_of_any_width_shows_all_of_it(desk: Desk, columns: int) -> None:
    note = "word " * 29 + "end"
    desk.does("job-run", "--follow", "--cmd", "true")
    desk.does("job-note", "1", note)
    shown = on_terminal(desk, columns, "job-show", "1")
    assert str(desk.root) in shown
    assert f"note {note}" in " ".join(shown.split())
    too_wide = [line for line in shown.partition("server ")[2].splitlines() if len(line) > columns]
    assert all(" " not in line[12:].strip() for line in too_wide), "only paths are wider"


def test_a_queued_job_has_not_started_and_names_what_it_waits_for_by_its_key(desk: Desk) -> None:
    desk.does("job-run", "--name", "r1", "--cmd", "sleep 1000")
    desk.does("job-run", "--after", "1", "--cmd", "true")
    until(lambda: "waits for" in (desk.job(2)["reason"] or ""), "job 2 says why it waits")
    assert desk.job(2)["reason"] == "waits for the end of job 1 (r1)"
    header, first, second = (line.split() for line in desk.does("job-list").splitlines())
    columns = {name: index for index, name in enumerate(header)}
    assert (first[columns["QUEUED"]], second[columns["STARTED"]]) == ("-", "-")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d", second[columns["QUEUED"]])
    assert "after       job 1 (first, r1): running" in desk.does("job-show", "2").replace("after    ", "after       ")
    desk.does("job-kill", "1", "--grace", "0")
    assert desk.waits_for(2, "failed")["reason"].endswith("it begins only if job 1 (r1) succeeds, which was killed")
    assert "QUEUED" not in desk.does("job-list", "--all")


def test_who_follows_a_queued_job_reads_the_key_of_what_it_waits_for(desk: Desk) -> None:
    desk.does("job-run", "--name", "r1", "--cmd", "sleep 1000")
    desk.does("job-run", "--after", "1", "--cmd", "true")
    desk.waits_for(2, "queued")
    with desk.runs_meanwhile("job-tail", "2") as follower:
        assert follower.stdout is not None
        said = follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
    assert said == "first: job 2 is queued: waits for the end of job 1 (r1)\n"
    desk.does("job-kill", "1", "2", "--grace", "0")


def test_the_list_takes_keys_and_the_words_that_people_try(desk: Desk) -> None:
    desk.does("job-run", "--follow", "--cmd", "true")
    desk.does("job-run", "--cmd", "sleep 1000")
    desk.does("job-run", "--after", "2", "--cmd", "true")
    desk.waits_for(3, "queued")

    def keys(*words: str) -> list[int]:
        return [job["key"] for job in json.loads(desk.does("job-list", "--json", *words))["jobs"]]

    assert (keys("1"), keys("--all"), keys("--running"), keys()) == ([1], [1, 2, 3], [2], [2, 3])
    assert "cannot be combined" in desk.refuses("job-list", "--running", "--all", status=2)
    wide = desk.does("job-list", "2", "--wide").splitlines()
    job = desk.job(2)
    assert wide[0].split()[:4] == ["KEY", "ID", "PID", "SERVER"]
    assert wide[1].split()[:4] == ["2", job["id"], str(job["pid"]), "first"]
    assert desk.does("job-tail", "-f", "1") == ""
    assert "cannot be combined" in desk.refuses("job-tail", "-f", "--no-follow", "1", status=2)
    desk.does("job-kill", "2", "3", "--grace", "0")


def test_all_of_a_wide_row_is_on_a_terminal(desk: Desk) -> None:
    desk.does("job-run", "--follow", "--cmd", "true")
    shown = on_terminal(desk, 80, "job-list", "--all", "--wide")
    assert desk.job(1)["id"] in shown
    assert shown.rstrip().endswith("true")


def test_ctrl_c_names_the_key_to_follow_again_before_there_is_output(desk: Desk) -> None:
    desk.does("job-run", "--cmd", "sleep 1000")
    server, pause, text = desk.servers["first"], 1.0, ""
    before: set[int] = set()
    # Nothing shows that the job is followed now, so a busy machine gets more time at each try.
    while "to follow again" not in text and pause < PATIENCE:
        before.update(agents_in(server))
        with Terminal("job-tail", desk.job(1)["id"], cwd=desk.root) as terminal:
            until(lambda: {*agents_in(server)} - before, "it asks the server")
            time.sleep(pause)
            terminal.type("\x03")
            assert terminal.end() == 130
            pause, text = 2 * pause, terminal.text
    assert "still running; to follow again: remote-tool job-tail 1\n" in text
    desk.does("job-kill", "1", "--grace", "0")
