"""A server that was never prepared, or whose preparation failed, can be looked at and repaired."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.processes import environments, read_of
from tests.project import make_project
from tests.promises.conftest import Desk, until, without
from tests.sshd import TestServer
from tests.stand_in_gpus import gpu_line, process_line, put_nvidia_smi
from tests.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYTHONS = "/usr/bin/python3* /usr/local/bin/python3*"


@pytest.fixture
def bare(tmp_path: Path, ssh_key: Path) -> Iterator[Desk]:
    """Two servers that nobody has prepared."""
    with ExitStack() as stack:
        names = ("first", "second")
        servers = {name: stack.enter_context(TestServer(name, tmp_path / name, ssh_key)) for name in names}
        yield Desk(make_project(tmp_path / "project", servers.values()), servers)


@pytest.fixture
def poor(tmp_path: Path, ssh_key: Path) -> Iterator[Desk]:
    """A server without any Python."""
    with TestServer("first", tmp_path / "first", ssh_key, before=without(PYTHONS)) as server:
        yield Desk(make_project(tmp_path / "project", [server], env={"GREETING": "it's me"}), {"first": server})


@pytest.fixture
def mixed(tmp_path: Path, ssh_key: Path) -> Iterator[Desk]:
    """A server without any Python beside two that have one."""
    with ExitStack() as stack:
        before = {"first": without(PYTHONS), "second": (), "third": ()}
        servers = {
            name: stack.enter_context(TestServer(name, tmp_path / name, ssh_key, before=words))
            for name, words in before.items()
        }
        yield Desk(make_project(tmp_path / "project", servers.values()), servers)


def processes_of(name: str, mark: str) -> list[int]:
    return [pid for pid in processes_with(mark) if read_of(pid, "comm").strip() == name.encode()]


def processes_with(mark: str) -> list[int]:
    return [pid for pid, found in environments() if f"MARK={mark}\0".encode() in found]


def test_a_command_runs_with_nothing_but_a_shell(poor: Desk) -> None:
    home = poor.servers["first"].home
    assert poor.tries("run", "--cmd", "python3 --version").returncode != 0
    ran = poor.tries(
        "run", "--env", "RATE", "a 'b'", "--cmd", 'cat; pwd; echo "$GREETING, $RATE"; echo bad >&2; exit 7'
    )
    assert (ran.returncode, ran.stdout) == (7, f"{home}\nit's me, a 'b'\n")
    assert "bad\n" in ran.stderr
    assert "first is not prepared: the command runs in the project's folder if there is one" in ran.stderr
    assert poor.tries("run", "--cmd", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    (home / "project").mkdir()
    assert poor.does("run", "--cmd", "pwd") == f"{home}/project\n"
    assert poor.does("run", "--cmd", f"echo {'x' * 100_000} | wc -c") == "100001\n"
    assert "[[ works ]]" in poor.does("run", "--cmd", "if [[ a == a ]]; then echo '[[ works ]]'; fi")


def test_a_sync_needs_no_python(poor: Desk) -> None:
    file, home = poor.root / "train.py", poor.servers["first"].home
    for text in ("print(1)\n", "print(22)\n"):
        file.write_text(text)
        poor.does("rsync")
        assert (home / "project" / "train.py").read_text() == text
    file.unlink()
    poor.does("rsync")
    assert not (home / "project" / "train.py").exists()


def test_a_command_without_python_ends_with_its_client(poor: Desk) -> None:
    mark = os.urandom(8).hex()
    client = poor.runs_meanwhile("run", "--env", "MARK", mark, "--cmd", "sleep 1000 & sleep 1000")
    until(lambda: len(processes_with(mark)) >= 3, "the command runs")
    client.send_signal(signal.SIGINT)
    client.communicate()
    until(lambda: not processes_with(mark), "the command has ended")


def test_a_shell_without_python_is_on_a_terminal(poor: Desk) -> None:
    home = poor.servers["first"].home
    (home / ".profile").write_text("GREETING='of the profile'; WELCOME=back\n")
    mark, secret = os.urandom(8).hex(), f"'{os.urandom(8).hex()}\n$(id) \\"
    with Terminal(
        "shell", "--server", "first", "--env", "SECRET", secret, cwd=poor.root, environment={"TERM": "vt100"}
    ) as terminal:
        terminal.until("first is not prepared: the shell runs in the project's folder if there is one")
        # Before the shell has begun.
        terminal.type("echo early-$((40+2))\n")
        terminal.until("early-42")
        terminal.type("echo in-$PWD, $GREETING, $WELCOME, $TERM; stty size\n")
        terminal.until(f"in-{home}, it's me, back, vt100\n40 80\n")
        terminal.resize(30, 100)
        # What is typed may overtake the signal of the new size.
        terminal.type("until stty size | grep ^30; do sleep 0.1; done; [ -t 1 ] && echo all-o''n-a-terminal\n")
        terminal.until("30 100\nall-on-a-terminal")
        terminal.type(f'printf %s "$SECRET" | wc -c; echo {"x" * 3000} | wc -c\n')
        terminal.until(f"\n{len(secret)}\n3001\n")
        terminal.type(f"export MARK={mark}; sleep 1000\n")
        until(lambda: processes_of("sleep", mark), "the program runs")
        terminal.type("\x03")
        terminal.type("echo sta''tus $?\n")
        terminal.until("status 130")
        terminal.type("exit 5\n")
        assert terminal.end() == 5
        assert not terminal.is_raw
    assert secret[:17] not in terminal.text


@pytest.mark.row(204)
def test_a_terminal_without_python_is_hung_up_when_the_user_leaves(poor: Desk) -> None:
    mark = os.urandom(8).hex()
    command = 'tty; stty -a | grep -c iutf8; [[ a == a ]] && python3 --version; trap "exit 3" HUP; echo rea""dy; cat'
    with Terminal("shell", "--server", "first", "--env", "MARK", mark, "--cmd", command, cwd=poor.root) as terminal:
        terminal.until("/dev/pts/")
        terminal.until("\n1\n")
        terminal.until("ready")
        assert processes_with(mark)
        terminal.type("\n~.")
        terminal.until("disconnected")
        assert terminal.end() == 0
    until(lambda: not processes_with(mark), "the program has ended")
    with Terminal("shell", "--server", "first", "--cmd", "exit 7", cwd=poor.root) as terminal:
        assert terminal.end() == 7


def test_a_server_that_gives_no_terminal_says_so(poor: Desk) -> None:
    server = poor.servers["first"]
    server.stop()
    server.options["PermitTTY"] = "no"
    server.start()
    with Terminal("shell", "--server", "first", cwd=poor.root) as terminal:
        terminal.until("first: its sshd gives no terminal")
        terminal.until("PermitTTY")
        assert terminal.end() != 0


@pytest.mark.row(37)
def test_a_program_without_python_reads_any_input_and_ends_with_its_client(poor: Desk) -> None:
    mark, data = os.urandom(8).hex(), bytes(range(256)) * 1000 + b".\n:\\n"
    words = [sys.executable, "-m", "remote_tool", "shell", "--server", "first", "--env", "MARK", mark, "--"]
    ran = subprocess.run(
        [*words, "sh", "-c", "cat; exit 4"], input=data, stdout=subprocess.PIPE, check=False, cwd=poor.root
    )
    assert (ran.returncode, ran.stdout) == (4, data)
    closes = subprocess.run(
        [*words, "sh", "-c", "exec <&-; sleep 1; echo late"],
        input=data * 20,
        stdout=subprocess.PIPE,
        check=False,
        cwd=poor.root,
    )
    assert (closes.returncode, closes.stdout) == (0, b"late\n")
    for ends in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen([*words, "sleep", "1000"], stdin=subprocess.PIPE, cwd=poor.root) as client:
            until(lambda: processes_of("sleep", mark), "the program runs")
            client.send_signal(ends)
        until(lambda: not processes_with(mark), "the program has ended")


def test_gpus_are_shown_without_python(poor: Desk) -> None:
    server = poor.servers["first"]
    assert "first: no GPUs" in poor.tries("gpus").stderr
    with subprocess.Popen(["sleep", "1000"]) as used:
        put_nvidia_smi(
            server.programs, gpu_line(0), gpu_line(1, load=0, used="[N/A]"), processes=process_line(0, used.pid)
        )
        shown = poor.tries("gpus")
        assert shown.returncode == 0
        assert [line.split()[:5] for line in shown.stdout.splitlines()[1:]] == [
            ["first", "0", "used", getpass.getuser(), f"pid={used.pid}"],
            ["first", "1", "unknown", "-", "-"],
        ]
        assert "first: it has no Python 3.8 or newer, so leases and the queue are unknown" in shown.stderr
        (listed,) = json.loads(poor.does("gpus", "--json"))["servers"]
        used.kill()
    assert [(gpu["state"], gpu["load"], gpu["memory_used"]) for gpu in listed["gpus"]] == [
        ("used", 97, 40000 * 1024 * 1024),
        ("unknown", 0, None),
    ]
    refused = poor.refuses("gpus", "--wait", "1")
    assert "first has no Python 3.8 or newer" in refused
    assert "remote-tool prepare --server first" in refused
    put_nvidia_smi(server.programs, otherwise="echo 'Driver/library version mismatch'; exit 18")
    assert "its GPUs are unknown: nvidia-smi: Driver/library version mismatch" in poor.tries("gpus").stderr
    assert not list(server.home.iterdir())
    assert not list(server.leases.iterdir())


def test_what_needs_python_names_it_and_the_other_servers_go_on(mixed: Desk) -> None:
    lacks = "first has no Python 3.8 or newer: only rsync, run, shell, gpus, and check work there"
    # From here on their keys are known, of which the first command has a line each.
    mixed.does("run", "--cmd", "true")
    sampled = mixed.tries("top", "--once", "--json")
    assert [each["server"] for each in json.loads(sampled.stdout)["servers"]] == ["second", "third"]
    assert not list(mixed.servers["second"].home.iterdir())
    measured = mixed.tries("bandwidth", "--seconds", "0.2", "--json")
    assert len(json.loads(measured.stdout)["links"]) == 2
    for ran in (sampled, measured):
        assert ran.returncode == 3
        # On a busy machine, a server may also be said to be slow.
        of_first = [line for line in ran.stderr.splitlines() if "first" in line and "no answer for" not in line]
        assert of_first == [f"error: {lacks}", "hint: remote-tool prepare --server first"]
    assert "first is not prepared" in mixed.refuses("job-run", "--server", "first", "--no-sync", "--cmd", "true")
    with Terminal("top", cwd=mixed.root) as terminal:
        terminal.until("has no Python 3.8 or newer")
        terminal.type("q")
        terminal.end()
    assert not list(mixed.servers["first"].home.iterdir())
    assert not list(mixed.servers["first"].leases.iterdir())


def test_servers_are_looked_at_and_left_as_they_were(bare: Desk) -> None:
    assert "no GPUs" in bare.tries("gpus").stderr
    listed = json.loads(bare.does("top", "--once", "--json"))
    assert [(each["server"], each["disk_problem"]) for each in listed["servers"]] == [("first", ""), ("second", "")]
    assert all(each["disk_free"] > 0 and each["cores"] for each in listed["servers"])
    assert bare.does("shell", "--server", "first", "--", "sh", "-c", "pwd; exit 0") == f"{bare.servers['first'].home}\n"
    for server in bare.servers.values():
        assert [path.name for path in server.home.iterdir()] == []
    measured = json.loads(bare.does("bandwidth", "--seconds", "0.2", "--json"))
    assert len(measured["links"]) == 2


def test_a_followed_job_that_did_not_start_is_reported_once(bare: Desk) -> None:
    for command in (["job-run", "--server", "first", "--no-sync", "--cmd", "true"], ["job-rerun", "1"]):
        said = bare.refuses(*command, "--follow")
        assert said.count("not started: first is not prepared") == 1, said
        assert "remote-tool prepare --server first" in said


def test_a_shell_opens_on_a_terminal(bare: Desk) -> None:
    terminal = Terminal("shell", "--server", "first", cwd=bare.root, environment={"SHELL": "/bin/sh"})
    terminal.until("first is not prepared: the shell runs in the project's folder if there is one")
    terminal.type("echo 4$((1+1)) rows; stty size; exit 5\n")
    terminal.until("42 rows")
    terminal.until("40 80")
    assert terminal.process.wait(60) == 5


def test_a_server_whose_preparation_failed_can_be_repaired(bare: Desk) -> None:
    bare.configure(environment={"existing": str(bare.servers["first"].home / "venv")})
    bare.refuses("prepare", "--server", "first")
    bare.there().mkdir(exist_ok=True)
    (bare.there() / "half.txt").touch()
    assert "half.txt" in bare.does("run", "--server", "first", "--cmd", "ls")
    bare.does("run", "--server", "first", "--cmd", f"ln -s {sys.prefix} ~/venv")
    bare.does("prepare", "--server", "first")
    assert "not prepared" not in bare.tries("run", "--server", "first", "--cmd", "true").stderr
