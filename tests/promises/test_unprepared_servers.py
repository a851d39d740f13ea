"""A server that was never prepared, or whose preparation failed, can be looked at and repaired."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.cli.terminal import Terminal
from tests.processes import environments
from tests.project import make_project
from tests.promises.conftest import Desk, until
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITHOUT_PYTHON = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'for each in /usr/bin/python3* /usr/local/bin/python3*; do mount --bind /dev/null "$each"; done; exec "$@"',
    "sh",
)


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
    if os.geteuid() != 0:
        pytest.skip("taking a program from a server needs root")
    with TestServer("first", tmp_path / "first", ssh_key, before=WITHOUT_PYTHON) as server:
        yield Desk(make_project(tmp_path / "project", [server], env={"GREETING": "it's me"}), {"first": server})


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


def test_a_command_without_python_ends_with_its_client(poor: Desk) -> None:
    mark = os.urandom(8).hex()
    client = poor.runs_meanwhile("run", "--env", "MARK", mark, "--cmd", "sleep 1000 & sleep 1000")
    until(lambda: len(processes_with(mark)) >= 3, "the command runs")
    client.send_signal(signal.SIGINT)
    client.communicate()
    until(lambda: not processes_with(mark), "the command has ended")


def test_what_needs_more_says_so(poor: Desk) -> None:
    refused = poor.refuses("gpus")
    assert "first has no Python 3.8 or newer" in refused
    assert "remote-tool run --server first --cmd" in refused
    assert "first is not prepared" in poor.refuses("job-run", "--no-sync", "--cmd", "true")


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
