"""shell, job-run --tty and job-attach: the real program on a terminal, and real programs on a real server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from remote_tool import Workspace
from tests.processes import environments, is_running, open_files, parents
from tests.program import remote_tool
from tests.project import kill, make_project
from tests.shells import DRAWS, LONG, PROMPT, prompt, say, shell, wait_for
from tests.sshd import TestServer, make_key
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool import Job

BRACKET = "\x1d"
# Removes the line below the prompt that says what is going on.
NOT_BELOW = b"\x1b7\x1b[B\r\x1b[M\x1b8"
# The exit status when no server was reached to the end.
NOT_REACHED = 4


def processes_with(mark: str) -> list[int]:
    """Every process with a variable of this value."""
    return [pid for pid, found in environments() if f"MARK={mark}\0".encode() in found]


def sockets_of(pid: int) -> int:
    return sum(name.startswith("socket:") for name in open_files(pid).values())


def through_pipes(project: Path, given: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "remote_tool", "shell", *words],
        cwd=project,
        input=given,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )


def start(project: Path, *words: str) -> Job:
    """Start a job on a terminal."""
    started = remote_tool("job-run", "--server", "first", "--no-sync", "--tty", "--json", *words, cwd=project)
    assert started.returncode == 0, started.stderr
    (job,) = json.loads(started.stdout)["jobs"]
    return Workspace.find(project).known_jobs([job["id"]])[0]


def attach(project: Path, job: Job) -> Terminal:
    return Terminal("job-attach", str(job.key), cwd=project)


def log_of(two_machines: dict[str, TestServer], job: Job) -> bytes:
    return (two_machines["first"].home / "project" / ".jobs" / job.id / "job.out").read_bytes()


@pytest.fixture
def jobs(project: Path) -> Iterator[list[Job]]:
    """Jobs to end after a test."""
    started: list[Job] = []
    yield started
    if started:
        kill(project, *started)


@pytest.mark.row(202)
def test_a_shell_has_the_folder_and_the_environment_of_run(project: Path) -> None:
    with shell(project, mark="a'b c") as terminal:
        prompt(terminal)
        say(terminal, "basename $PWD; command -v python; echo $((6*7))$MARK", "42a'b c")
        assert "\nproject\n" in terminal.text
        assert str(Path(sys.prefix, "bin", "python")) in terminal.text
        say(terminal, 'echo "$TERM is $((1+1))" $REMOTE_TOOL_SERVER', "xterm-256color is 2 first")
        terminal.type("exit 7\r")
        assert terminal.end(LONG) == 7


@pytest.mark.row(202)
def test_startup_files_do_not_change_the_environment(project: Path, two_machines: dict[str, TestServer]) -> None:
    profile = two_machines["first"].home / ".bash_profile"
    profile.write_text("export PATH=/other/bin:$PATH VIRTUAL_ENV=/other MARK=changed OWN=mine\nalias hi='echo alias'\n")
    try:
        with shell(project, mark="kept") as terminal:
            prompt(terminal)
            say(terminal, "echo $OWN-$MARK $((1+1)); hi", "mine-kept 2\nalias")
            say(terminal, 'case $PATH in */other/bin*) echo "last$((1+1))";; esac', "last2")
            say(terminal, "command -v python; echo $((1+2))", str(Path(sys.prefix, "bin", "python")))
            terminal.type("exit\r")
            assert terminal.end(LONG) == 0
    finally:
        profile.unlink()


@pytest.mark.row(202)
def test_the_size_of_the_window_follows_its_changes(project: Path) -> None:
    with shell(project) as terminal:
        prompt(terminal)
        say(terminal, "stty size", "40 80")
        say(terminal, "trap 'echo changed $(stty size)' WINCH; echo $((2+3))x", "5x")
        terminal.resize(33, 200)
        terminal.type("\r")
        terminal.until("changed 33 200", seconds=LONG)
        terminal.type("exit\r")
        terminal.end(LONG)


@pytest.mark.row(202)
def test_bytes_pass_as_they_are(project: Path) -> None:
    with shell(project) as terminal:
        prompt(terminal)
        say(terminal, r"printf '\033[1;31m%s\033[0m \342\202\254\n' co''lored", "colored €")
        assert b"\x1b[1;31mcolored\x1b[0m \xe2\x82\xac" in terminal.raw
        say(terminal, "sh -c 'echo g''o; IFS= read -r line; echo \"<$line>\" | od -An -tx1 | tr -d \" \"'", "\ngo")
        say(terminal, "é€𝄞", "3cc3a9e282acf09d849e3e0a")
        # With UTF-8 a character is erased whole.
        say(terminal, "sh -c 'echo be''gin; od -An -tx1'", "\nbegin")
        terminal.type("xé\x7fy\r\x04")
        terminal.until("78 79 0a", seconds=LONG)
        terminal.type("exit\r")
        terminal.end(LONG)


@pytest.mark.row(202)
def test_keys_reach_the_programs_and_jobs_can_be_stopped_and_continued(project: Path) -> None:
    with shell(project) as terminal:
        prompt(terminal)
        say(terminal, "sh -c 'trap \"echo got INT; exit 3\" INT; echo r''un; while :; do sleep 0.1; done'", "run")
        terminal.type("\x03")
        terminal.until("got INT", seconds=LONG)
        say(terminal, "echo status-$?", "status-3")
        say(terminal, "sh -c 'echo be''gin; exec sleep 1000'", "begin")
        terminal.type("\x1a")
        terminal.until("Stopped", seconds=LONG)
        say(terminal, "bg; jobs", "Running")
        say(terminal, "kill %1; wait; echo wai''ted", "waited")
        say(terminal, "sh -c 'echo ea''t; exec cat'; echo ca''t-$?", "\neat")
        terminal.type("\x04")
        terminal.until("cat-0", seconds=LONG)
        # The shell would miss Ctrl-D before it reads again.
        terminal.type("exit\n")
        assert terminal.end(LONG) == 0


@pytest.mark.row(202)
def test_one_program_has_the_terminal_and_its_status_is_ours(project: Path) -> None:
    with shell(
        project, "--", "python", "-c", "import os, sys; print(os.isatty(0), os.isatty(2)); sys.exit(41)"
    ) as term:
        assert term.end(LONG) == 41
        assert "True True" in term.text
    with shell(project, "--", "sh", "-c", "kill -9 $$") as terminal:
        assert terminal.end(LONG) == 128 + signal.SIGKILL


def test_a_debugger(project: Path) -> None:
    code = "import pdb\nx = 20\npdb.set_trace()\nprint('af' + 'ter', x)"
    with shell(project, "--", "python", "-c", code) as terminal:
        terminal.until("(Pdb)", seconds=LONG)
        say(terminal, "p x + 1", "21")
        say(terminal, "c", "after 20")
        assert terminal.end(LONG) == 0


@pytest.mark.skipif(shutil.which("vim") is None, reason="no vim")
def test_an_editor_on_the_whole_screen(project: Path, two_machines: dict[str, TestServer]) -> None:
    file = two_machines["first"].home / "project" / "edited.txt"
    file.unlink(missing_ok=True)
    with shell(project, "--", "vim", "-u", "NONE", "edited.txt") as terminal:
        terminal.until('"edited.txt" [New', seconds=LONG)
        terminal.type("ione\rtwo")
        terminal.until("two", seconds=LONG)
        terminal.type("\x1b")
        terminal.type(":wq\r")
        assert terminal.end(LONG) == 0
    assert file.read_text() == "one\ntwo\n"
    file.unlink()


@pytest.mark.row(210)
def test_without_a_terminal_a_program_has_pipes(project: Path) -> None:
    code = "import sys; data = sys.stdin.read(); print(data[::-1], sys.stdin.isatty()); print('e', file=sys.stderr)"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "remote_tool",
            "shell",
            "--server",
            "first",
            "--",
            "python",
            "-c",
            f"{code}; sys.exit(5)",
        ],
        cwd=project,
        input="abc" * 100_000,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout == "cba" * 100_000 + " False\n"
    assert done.stderr == "e\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("shell", "--server", "first"), "needs a terminal"),
        (("shell", "--server", "first", "--keep", "x", "--", "true"), "--keep needs a terminal"),
        (("shell",), "A shell needs one server, and 2 are selected: first, second"),
        (("shell", "--server", "nowhere"), "Unknown server 'nowhere'"),
        (("shell", "--server", "first", "--keep", " "), "--keep needs a name"),
        (("job-attach", "1", "2"), "job-attach takes one job"),
        (("job-attach", "987654"), "No job '987654'"),
        (("ssh", "first"), "Did you mean 'shell'?"),
    ],
)
@pytest.mark.row(209)
def test_an_impossible_terminal_is_refused_with_one_sentence(project: Path, words: tuple[str, ...], says: str) -> None:
    done = remote_tool(*words, cwd=project)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.row(203, 204)
def test_the_escape_hangs_up_and_the_terminal_is_as_before(project: Path) -> None:
    with shell(project, mark="escape") as terminal:
        before = terminal.modes
        prompt(terminal)
        say(terminal, "nohup sleep 1000 & printf '\\033[?2004h\\033[?1049h%s' mo''des", "modes")
        assert terminal.is_raw
        assert processes_with("escape")
        terminal.type("\r~?")
        terminal.until("~.      disconnect", seconds=LONG)
        terminal.type("\r~.")
        assert terminal.end(LONG) == 0
        assert "disconnected; the program has been hung up" in terminal.text
        assert terminal.modes == before
        assert terminal.raw.rstrip().find(b"\x1b[?1049l") > terminal.raw.find(b"\x1b[?1049h")
    wait_for(lambda: not processes_with("escape"), "the end of every process")


def test_a_message_after_a_prompt_is_on_a_line_of_its_own(project: Path) -> None:
    with shell(project) as terminal:
        prompt(terminal)
        terminal.type("~.")
        assert terminal.end(LONG) == 0
        assert "\ndisconnected; the program has been hung up" in terminal.text


@pytest.mark.row(203, 204)
def test_after_sigterm_the_terminal_is_as_before_and_nothing_runs(project: Path) -> None:
    with shell(project, mark="sigterm") as terminal:
        before = terminal.modes
        prompt(terminal)
        assert terminal.is_raw
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end(LONG) == 128 + signal.SIGTERM
        assert terminal.modes == before
    wait_for(lambda: not processes_with("sigterm"), "the end of every process")


@pytest.mark.row(203, 204, 205, 236)
def test_after_a_cut_link_the_terminal_is_as_before_and_nothing_runs(tmp_path: Path, ssh_key: Path) -> None:
    with TestServer("cut", tmp_path / "cut", ssh_key) as server:
        root = make_project(tmp_path / "project", [server])
        prepared = remote_tool("prepare", cwd=root)
        assert prepared.returncode == 0, prepared.stderr
        with shell(root, mark="cut", server="cut") as terminal:
            before = terminal.modes
            prompt(terminal)
            server.drop_connections()
            assert terminal.end(LONG) == NOT_REACHED
            assert "The connection to cut was lost" in terminal.text
            assert terminal.modes == before
        wait_for(lambda: not processes_with("cut"), "the end of every process")
        _continues_after_a_cut(root, server)
        _is_found_again(root)
        _starts_once(root, make_project(tmp_path / "other" / "project", [server]))


def _continues_after_a_cut(root: Path, server: TestServer) -> None:
    with shell(root, "--keep", "work", server="cut") as terminal:
        prompt(terminal)
        say(terminal, "number=$((20+3)); echo set-$number", "set-23")
        server.drop_connections()
        terminal.until("connecting again (Ctrl-] detaches)", seconds=LONG)
        terminal.until_bytes(NOT_BELOW, LONG)
        say(terminal, "echo again-$number", "again-23")
        # Nothing was shown twice.
        assert terminal.text.count("set-23") == 1
        server.stop()
        terminal.until("connecting again", times=2, seconds=LONG)
        terminal.type(BRACKET)
        assert terminal.end(LONG) == 0
        assert "attach again: remote-tool shell --server cut --keep work" in terminal.text
    server.start()


def _starts_once(root: Path, second_laptop: Path) -> None:
    words = ("--keep", "both")
    with shell(root, *words, server="cut") as one, shell(second_laptop, *words, server="cut") as other:
        prompt(one)
        prompt(other)
        say(one, "echo seen-$((20+3))", "seen-23")
        other.until("seen-23", seconds=LONG)
        one.type("exit\r")
        assert (one.end(LONG), other.end(LONG)) == (0, 0)
    listed = json.loads(remote_tool("job-list", "--stopped", "--json", "--tag", "shell:both", cwd=root).stdout)["jobs"]
    assert len(listed) == 1


def _is_found_again(root: Path) -> None:
    with shell(root, "--keep", "work", server="cut") as terminal:
        # What was on the screen is there again.
        terminal.until("set-23", seconds=LONG)
        say(terminal, "echo still-$number", "still-23")
        terminal.type(BRACKET)
        assert terminal.end(LONG) == 0
        assert "attach again: remote-tool shell --server cut --keep work" in terminal.text
    with shell(root, "--keep", "work", server="cut") as terminal:
        terminal.until("still-23", seconds=LONG)
        terminal.type("exit 9\r")
        assert terminal.end(LONG) == 9
    listed = json.loads(remote_tool("job-list", "--stopped", "--json", cwd=root).stdout)["jobs"]
    assert [(job["terminal"], job["tags"], job["exit_code"]) for job in listed] == [("shell", ["shell:work"], 9)]
    with shell(root, "--keep", "work", server="cut") as terminal:
        prompt(terminal)
        assert remote_tool("job-kill", "--tag", "shell:work", cwd=root).returncode == 0
        assert terminal.end(LONG) > 128
    (job,) = json.loads(remote_tool("job-list", "--last", "1", "--json", cwd=root).stdout)["jobs"]
    # An interactive shell ignores SIGTERM, and yet nobody waited for SIGKILL.
    assert (job["state"], job["signal"], job["reason"]) == ("killed", "SIGHUP", "stopped with SIGTERM")


@pytest.mark.row(206)
def test_several_attach_to_a_job_and_its_log_has_all(
    project: Path, two_machines: dict[str, TestServer], jobs: list[Job]
) -> None:
    code = (
        "import os, shutil\nprint('hello', os.isatty(1), flush=True)\n"
        "while (line := input('say: ')) != 'end':\n    print('heard', line.upper(), *os.get_terminal_size())\n"
        "raise SystemExit(17)"
    )
    job = start(project, "--", "python", "-c", code)
    jobs.append(job)
    with attach(project, job) as first:
        before = first.modes
        first.until("hello True", seconds=LONG)
        first.until("say:", seconds=LONG)
        with attach(project, job) as second:
            second.until("hello True", seconds=LONG)
            second.resize(50, 132)
            say(second, "two", "heard TWO")
            first.until("heard TWO", seconds=LONG)
            wait_for(lambda: _size_seen(second, "132 50"), "the size of the last")
            second.type(BRACKET)
            assert second.end(LONG) == 0
            assert f"attach again: remote-tool job-attach {job.key}" in second.text
            assert second.modes == before
        wait_for(lambda: _size_seen(first, "80 40"), "the size of the one who is left")
        first.type("end\r")
        assert first.end(LONG) == 17
        assert first.text.rstrip().endswith(f"job {job.key} on first has ended, exit code 17")
        assert first.modes == before
    waited = remote_tool("job-wait", str(job.key), cwd=project)
    assert waited.returncode == 17
    log = log_of(two_machines, job)
    assert b"hello True\r\n" in log
    # What is typed may be echoed before the answer to the line before it.
    assert b"end\r\n" in log
    jobs.clear()
    assert not (two_machines["first"].home / "project" / ".jobs" / job.id / "terminal").exists()
    _says_that_it_has_ended(project, job)


def _says_that_it_has_ended(project: Path, job: Job) -> None:
    with attach(project, job) as late:
        assert late.end(LONG) == 2
        assert f"Job {job.key} has ended" in late.text
        assert f"remote-tool job-tail {job.key}" in late.text


def _size_seen(terminal: Terminal, size: str) -> bool:
    terminal.type("x\r")
    try:
        terminal.until(f"heard X {size}", seconds=0.5)
    except AssertionError:
        return False
    return True


@pytest.mark.row(209)
def test_a_job_without_a_terminal_says_how_to_get_one(project: Path, jobs: list[Job]) -> None:
    job = Workspace.find(project).start("first", "sleep 1000").job
    jobs.append(job)
    with attach(project, job) as terminal:
        assert terminal.end(LONG) == 2
        assert f"Job {job.key} has no terminal" in terminal.text
        assert "job-run --tty" in terminal.text


@pytest.mark.row(207)
def test_a_stopped_job_has_its_grace_period(
    project: Path, two_machines: dict[str, TestServer], jobs: list[Job]
) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n    time.sleep(1)\n    print('sa' + 'ved', flush=True)\n    sys.exit(4)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('beg' + 'un', flush=True)\ntime.sleep(1000)"
    )
    job = start(project, "--", "python", "-c", code)
    jobs.append(job)
    with attach(project, job) as terminal:
        terminal.until("begun", seconds=LONG)
        assert remote_tool("job-kill", str(job.key), "--grace", "50", cwd=project).returncode == 0
        terminal.end(LONG)
        assert "saved" in terminal.text
    assert b"saved" in log_of(two_machines, job)


@pytest.mark.row(207)
def test_a_job_ends_with_its_command_though_a_child_holds_the_terminal(
    project: Path, two_machines: dict[str, TestServer], jobs: list[Job]
) -> None:
    job = start(project, "--env", "MARK=holds", "--cmd", "setsid sleep 1000 & read line; echo fini''shed; exit 6")
    jobs.append(job)
    with attach(project, job) as terminal:
        wait_for(lambda: len(processes_with("holds")) > 1, "the child")
        terminal.type("go\r")
        assert terminal.end(LONG) == 6
        assert "finished" in terminal.text
    assert not processes_with("holds")
    assert b"finished" in log_of(two_machines, job)


@pytest.mark.row(206)
def test_signals_of_a_job_are_recorded_exactly(project: Path, jobs: list[Job]) -> None:
    job = start(project, "--cmd", "read line; kill -SEGV $$")
    jobs.append(job)
    with attach(project, job) as terminal:
        wait_for(lambda: terminal.is_raw, "the attachment")
        terminal.type("go\r")
        assert terminal.end(LONG) == 128 + signal.SIGSEGV
    remote_tool("job-wait", str(job.key), cwd=project)
    assert Workspace.find(project).known_jobs([job.id])[0].signal == "SIGSEGV"


def test_a_full_screen_program_redraws_when_a_client_attaches(project: Path, jobs: list[Job]) -> None:
    job = start(project, "--", "python", "-c", DRAWS)
    jobs.append(job)
    for _ in range(2):
        with attach(project, job) as terminal:
            terminal.until("drawn 40", seconds=LONG)
            assert b"\x1b[?1049h" in terminal.raw
            assert b"\x1b[?2004h" in terminal.raw
            terminal.type(BRACKET)
            assert terminal.end(LONG) == 0
            assert b"\x1b[?1049l" in terminal.raw


@pytest.mark.row(236)
def test_a_job_that_ends_while_the_server_is_away_has_its_exit_status(tmp_path: Path, ssh_key: Path) -> None:
    with TestServer("away", tmp_path / "away", ssh_key) as server:
        root = make_project(tmp_path / "project", [server])
        prepared = remote_tool("prepare", cwd=root)
        assert prepared.returncode == 0, prepared.stderr
        nobody = attach_to_any(root)
        assert nobody == (2, "error: No job with a terminal is running\nhint: remote-tool job-run --tty starts one\n")
        command = "echo beg''un; while [ ! -e go ]; do sleep 0.1; done; echo l''ast; exit 7"
        started = remote_tool("job-run", "--no-sync", "--tty", "--json", "--cmd", command, cwd=root)
        (job,) = json.loads(started.stdout)["jobs"]
        # The only one that has a terminal.
        with Terminal("job-attach", cwd=root) as terminal:
            terminal.until("begun", seconds=LONG)
            server.stop()
            terminal.until("connecting again (Ctrl-] detaches)", seconds=LONG)
            (server.home / "project" / "go").touch()
            # The end is recorded a moment before the terminal closes.
            record = server.home / "project" / ".jobs" / job["id"] / "started.json"
            supervisor = json.loads(record.read_text())["supervisor"]["pid"]
            wait_for(lambda: not is_running(supervisor), "the end of the job")
            server.start()
            assert terminal.end(LONG) == 7
            assert f"job {job['key']} ended while the connection was lost" in terminal.text
            assert "last" not in terminal.text


@pytest.mark.row(258)
def test_a_question_of_a_new_login_is_asked_on_the_users_own_screen(tmp_path: Path) -> None:
    key = make_key(tmp_path / "id_asks")
    with TestServer("asks", tmp_path / "asks", key) as server:
        root = make_project(tmp_path / "project", [server])
        prepared = remote_tool("prepare", cwd=root)
        assert prepared.returncode == 0, prepared.stderr
        with shell(root, "--keep", "work", server="asks") as terminal:
            say(terminal, "bind 'set enable-bracketed-paste on'; PS1=rea'dy> '", PROMPT)
            terminal.until_bytes(b"\x1b[?2004h", LONG)
            before = _asked_after_a_cut(terminal, server, key)
            # On a line of its own, below which nothing stands, and where a password can be pasted.
            assert before.endswith(b"\r\nPassphrase of %s: " % os.fsencode(key))
            assert before.rfind(NOT_BELOW) > before.rfind(b"connecting again")
            assert before.rfind(b"\x1b[?2004l") > before.rfind(b"\x1b[?2004h")
            # It says again that it connects, and then that line is gone too.
            terminal.until_bytes(NOT_BELOW, LONG, before.count(NOT_BELOW) + 1)
            say(terminal, "echo again-$((1+1))", "again-2")
            terminal.type("exit\r")
            assert terminal.end(LONG) == 0
        with shell(root, "--keep", "draws", "--", "python", "-c", DRAWS, server="asks") as terminal:
            terminal.until("drawn 40", seconds=LONG)
            before = _asked_after_a_cut(terminal, server, key)
            assert before.rfind(b"\x1b[?1049l") > before.rfind(b"\x1b[?1049h")
            terminal.until("drawn 40", before.count(b"drawn 40") + 1, LONG)
            assert terminal.raw.rfind(b"\x1b[?1049h") > terminal.raw.rfind(b"\x1b[?1049l")
            terminal.type(BRACKET)
            assert terminal.end(LONG) == 0
        assert remote_tool("job-kill", "--tag", "shell:draws", cwd=root).returncode == 0


def _asked_after_a_cut(terminal: Terminal, server: TestServer, key: Path) -> bytes:
    """Cut the connection, whose key has got a passphrase; return all that came until the question, and answer it."""
    plain = key.with_name("plain")
    shutil.copy2(key, plain)
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)]
    subprocess.run(change, check=True, stdout=subprocess.DEVNULL)
    try:
        server.drop_connections()
        terminal.until(f"Passphrase of {key}: ", seconds=LONG)
        wait_for(lambda: terminal.is_hidden, "the question")
        asked = terminal.raw
        terminal.type("secret\n")
        wait_for(lambda: terminal.is_raw, "the end of the question")
    finally:
        # The login may be reading it.
        plain.replace(key)
    return asked


@pytest.mark.row(209)
def test_without_a_key_the_choices_are_listed(project: Path, jobs: list[Job]) -> None:
    jobs += [start(project, "--cmd", "read line") for _ in range(2)]
    status, said = attach_to_any(project)
    assert status == 2
    assert "jobs with a terminal are running: " in said
    assert all(f"{job.key} (first)" in said for job in jobs)
    assert "hint: remote-tool job-attach KEY" in said


def attach_to_any(project: Path) -> tuple[int, str]:
    """Return the exit status and the words of ``job-attach`` without a key."""
    with Terminal("job-attach", cwd=project) as terminal:
        return terminal.end(LONG), terminal.text


@pytest.mark.row(237)
def test_the_escape_is_heard_behind_a_paste_that_nobody_reads(project: Path) -> None:
    code = "import time, tty; tty.setraw(0); print('rea' + 'dy', flush=True); time.sleep(1000)"
    with shell(project, "--", "python", "-c", code, mark="paste") as terminal:
        terminal.until("ready", seconds=LONG)
        terminal.type("x" * 3_000_000)
        terminal.type("\r~.")
        assert terminal.end(LONG) == 0
    wait_for(lambda: not processes_with("paste"), "the end of every process")


@pytest.mark.row(237)
def test_a_suspended_session_comes_back_with_its_screen(project: Path) -> None:
    bash = ("-c", "import os; os.execvp('bash', ['bash', '--norc', '-i'])")
    with Terminal(cwd=project, program=bash) as terminal:
        program = shlex.join([sys.executable, "-m", "remote_tool", "shell", "--server", "first"])
        terminal.type(f"{program} -- python -c {shlex.quote(DRAWS)}\r")
        terminal.until("drawn 40", seconds=LONG)
        terminal.type("\r~\x1a")
        terminal.until("Stopped", seconds=LONG)
        # The user's own screen, on which bash works as before.
        assert terminal.raw.rfind(b"\x1b[?1049l") > terminal.raw.rfind(b"\x1b[?1049h")
        say(terminal, "echo $((20+1))x", "21x")
        terminal.type("fg\r")
        terminal.until("drawn 40", times=2, seconds=LONG)
        assert terminal.raw.rfind(b"\x1b[?1049h") > terminal.raw.rfind(b"\x1b[?1049l")
        assert terminal.is_raw
        terminal.type("\r~.")
        terminal.until("the program has been hung up", seconds=LONG)
        terminal.type("exit\r")
        terminal.end(LONG)


@pytest.mark.row(210)
def test_behind_a_launch_command(tmp_path: Path, two_machines: dict[str, TestServer]) -> None:
    root = make_project(tmp_path / "project", [two_machines["second"]], name="behind")
    file = root / ".remote" / "configs.yaml"
    values = yaml.safe_load(file.read_text())
    values["servers"]["second"]["launch"] = "env INSIDE=yes"
    file.write_text(yaml.safe_dump(values))
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    with shell(root, mark="behind", server="second") as terminal:
        prompt(terminal)
        say(terminal, "echo $INSIDE-$MARK $((1+1)); tty; stty size", "yes-behind 2\n/dev/pts/")
        terminal.type("exit 3\r")
        assert terminal.end(LONG) == 3
    with shell(root, "--keep", "in", mark="behind", server="second") as terminal:
        prompt(terminal)
        say(terminal, "echo $INSIDE-$MARK $((1+1)); tty", "yes-behind 2\n/dev/pts/")
        terminal.type("exit 5\r")
        assert terminal.end(LONG) == 5
    done = through_pipes(root, "in\n", "--", "sh", "-c", "cat; echo $INSIDE")
    assert done.stdout == "in\nyes\n", done.stderr
    scripts = two_machines["second"].home / "behind" / ".remote-scripts"
    wait_for(lambda: not list(scripts.glob(".script-*")), "the removal of the named pipes")
    wait_for(lambda: not processes_with("behind"), "the end of every process")


@pytest.mark.slow
@pytest.mark.row(208)
def test_a_terminal_that_nobody_reads_delays_neither_the_job_nor_its_log_and_is_dropped(
    project: Path, two_machines: dict[str, TestServer], jobs: list[Job]
) -> None:
    # The connection holds some MiB that nobody reads, so the job goes on until there is more than that.
    prints = "while [ ! -e is-dropped ]; do yes 123456789 | head -n 100000; sleep 0.3; done"
    job = start(project, "--cmd", f"read line; {prints}; echo l''ast; read line; exit 3")
    jobs.append(job)
    of_job = [pid for pid in parents() if f"/.jobs/{job.id}" in " ".join(open_files(pid).values())]
    # It listens for terminals.
    (supervisor,) = [pid for pid in of_job if sockets_of(pid) == 1]
    there = two_machines["first"].home / "project"
    output = there / ".jobs" / job.id / "job.out"
    with attach(project, job) as terminal:
        terminal.type("go\r")
        terminal.until("123456789", seconds=LONG)
        assert sockets_of(supervisor) == 2
        wait_for(lambda: sockets_of(supervisor) == 1, "who does not read is dropped")
        size = output.stat().st_size
        wait_for(lambda: output.stat().st_size > size + 1_000_000, "the job prints on")
        (there / "is-dropped").touch()
        wait_for(lambda: log_of(two_machines, job).endswith(b"last\r\n"), "its whole log")
        with attach(project, job) as other:
            other.until("last", seconds=LONG)
            other.type("\r")
            assert other.end(LONG) == 3
    (there / "is-dropped").unlink()
    log = log_of(two_machines, job)
    assert log.count(b"123456789") % 100_000 == 0
    assert log.endswith(b"last\r\n\r\n")
