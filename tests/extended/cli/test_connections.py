"""The program with logins that are kept: what it lists and closes, and what it need not load."""

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

from tests.kept_logins import keeping_logins, wait_for_logins
from tests.processes import open_files
from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeServer
    from tests.sshd import TestServer

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


# A busy machine may take more than a second for anything, and then the program logs in itself.
PATIENT = """
from remote_tool.transport.kept import connection
connection.ANSWER_SECONDS = 60.0
from remote_tool.cli.app import main
main()
"""


def patiently(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program, which also tells what it imports."""
    program = [sys.executable, "-X", "importtime", "-c", PATIENT]
    return subprocess.run([*program, *words], cwd=project, check=False, capture_output=True, text=True, timeout=300)


@pytest.fixture
def server(make_server: MakeServer) -> TestServer:
    return make_server("first")


@pytest.fixture
def project(server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with one server, whose login is kept."""
    root = make_project(tmp_path / "project", [server])
    with keeping_logins(monkeypatch) as folder:
        remote_tool("check", cwd=root)
        wait_for_logins(folder, 1)
        yield root


def test_kept_logins_are_listed_and_closed(project: Path) -> None:
    listed = remote_tool("connections", cwd=project)
    assert listed.returncode == 0
    assert listed.stdout.startswith("first: ")
    assert listed.stdout.endswith(", 0 in use\n")
    document = json.loads(remote_tool("connections", "--json", cwd=project).stdout)
    (login,) = document["connections"]
    assert login["server"] == "first"
    assert login["pid"] > 1

    closed = json.loads(remote_tool("disconnect", "--server", "first", "--json", cwd=project).stdout)
    assert closed["connections"] == [login]
    again = remote_tool("connections", cwd=project)
    assert (again.returncode, again.stdout) == (0, "")
    assert "no login is kept" in again.stderr


def test_a_sync_goes_over_a_kept_login(project: Path, server: TestServer) -> None:
    logins = server.log().count("Accepted publickey")
    ran = patiently(project, "rsync")
    assert ran.returncode == 0, ran.stderr
    assert (server.home / "project" / "hello.py").read_bytes() == (project / "hello.py").read_bytes()
    assert server.log().count("Accepted publickey") == logins


@pytest.mark.row(189)
def test_check_logs_in_although_a_login_is_kept(project: Path, server: TestServer) -> None:
    """It would otherwise not see that the server accepts the key no longer."""
    (server.folder / "authorized_keys").write_text("")
    checked = remote_tool("check", "--json", cwd=project)
    assert checked.returncode == 4, checked.stdout
    assert remote_tool("connections", cwd=project).stdout.startswith("first: ")


@pytest.mark.row(192)
def test_a_script_does_not_wait_for_the_master_that_its_command_starts(project: Path) -> None:
    """As a git hook, whose output git reads to its end."""
    remote_tool("disconnect", cwd=project)
    program = shlex.join([sys.executable, "-m", "remote_tool", "check"])
    hook = ["sh", "-c", f"exec 7>&1; {program}; {program}"]
    ran = subprocess.run(hook, cwd=project, check=False, capture_output=True, text=True, timeout=300)
    assert ran.stdout.count("SERVER") == 2
    wait_for_logins(Path(os.environ["XDG_RUNTIME_DIR"]), 1)
    (login,) = json.loads(remote_tool("connections", "--json", cwd=project).stdout)["connections"]
    opened = open_files(login["pid"]).values()
    assert not [name for name in opened if name.startswith("pipe:")], opened


def test_a_command_over_a_kept_login_loads_neither_the_ssh_library_nor_cryptography(project: Path) -> None:
    remote_tool("prepare", cwd=project)
    ran = patiently(project, "run", "--cmd", "echo $((40 + 2))")
    assert "42" in ran.stdout
    lines = [line for line in ran.stderr.splitlines() if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "remote_tool" in packages
    assert not packages & {"asyncssh", "cryptography"}


@pytest.mark.row(195)
def test_a_job_is_followed_to_its_end_when_the_kept_login_is_killed(project: Path, server: TestServer) -> None:
    remote_tool("prepare", cwd=project)
    (login,) = json.loads(remote_tool("connections", "--json", cwd=project).stdout)["connections"]
    command = "echo begun >> $HOME/began; echo begun; until [ -e $HOME/go ]; do sleep 0.1; done; echo end; exit 7"
    words = [sys.executable, "-m", "remote_tool", "job-run", "--follow", "--cmd", command]
    with subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "begun\n"
        os.kill(login["pid"], signal.SIGKILL)
        (server.home / "go").touch()
        out, err = following.communicate(timeout=300)
    assert (following.returncode, out) == (7, "end\n"), err
    assert "Traceback" not in err
    assert (server.home / "began").read_text() == "begun\n"
