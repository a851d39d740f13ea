"""Start-up files of the login shell that read, hang, end or become another shell, and every command that meets them.

After each: the command has ended in time and named the cause, none of what it was to run was run by whatever read our
stdin, nothing of ours is quoted, and what runs is still known to run.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, JobState, Workspace
from remote_tool.jobs.registry import Registry
from tests.figures import record_case
from tests.program import remote_tool
from tests.project import make_project
from tests.sshd import TestServer

from .commands_at_once import Ran, run_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND_ADDRESS = "127.0.0.2"
# It only logs in, and starts nothing on a server whose key works.
STARTS_NOTHING = {"keys"}
SENDS = {"job-run", "rsync", "rsync --relay", "prepare", "helper-torch-launch", "helper-mpi-launch", "helper-fan-out"}

SWALLOWED = r"a startup file of the login shell on gpu[12] \(such as ~/\.bashrc\) reads standard input"
ENDED = r"gpu[12]: the login shell did not run the command, and exited with status 0"
LATE = r"gpu[12]: the login shell did not start the command within 1\.5 s"
WORKS = ""
GUARD = "put this line first in ~/.bashrc: [[ $- == *i* ]] || return"
# What our scripts and requests hold and no message does.
OURS = re.compile(r"nonce|_script|run_control|IFS=|exit 93|\\u00|printf")
BOUND = 60
_PLACE = "remote_tool.transport.ssh.login_shell"
SHORT = {f"{_PLACE}:NOTICE_SECONDS": 0.3, f"{_PLACE}:LONGEST_START": 1.5}
# A busy machine takes its time to start a shell that ends by itself, and to end one that waits for us.
SETTINGS = {WORKS: {}, LATE: SHORT, ENDED: {}, SWALLOWED: SHORT | {f"{_PLACE}:END_SECONDS": 15.0}}


def commands_with(canary: str) -> dict[str, tuple[str, ...]]:
    """Every command that talks to a server; what is run by whoever reads it makes a file in the server's home."""
    command = f"echo $(touch ~/{canary}); touch ~/{canary}"
    env = ("--env", "VALUE", f"$(touch ~/{canary}) `touch ~/{canary}`")
    return {
        "run": ("run", "--cmd", command, *env),
        "job-run": ("job-run", "--cmd", command, *env),
        "job-run --no-sync": ("job-run", "--no-sync", "--cmd", command, *env),
        "job-run --follow": ("job-run", "--follow", "--no-sync", "--server", "gpu1", "--cmd", command, *env),
        "job-list": ("job-list",),
        "job-list --rsync": ("job-list", "--rsync"),
        "job-tail": ("job-tail", "--job", "2"),
        "job-kill": ("job-kill", "--job", "1", "--grace", "1"),
        "job-kill --orphans": ("job-kill", "--orphans", "--yes"),
        "job-wait": ("job-wait", "--job", "2"),
        "job-rsync": ("job-rsync",),
        "job-pull": ("job-pull", "--job", "2", "--artifact", "made.txt"),
        "rsync": ("rsync",),
        "rsync --relay": ("rsync", "--relay"),
        "prepare": ("prepare",),
        "setup": ("setup",),
        "update-packages": ("update-packages",),
        "check": ("check",),
        "keys": ("keys",),
        "bandwidth": ("bandwidth", "--seconds", "0.1"),
        "helper-torch-launch": ("helper-torch-launch", "--server", "gpu1", "--cmd", "hello.py", *env, "--dry-run"),
        "helper-mpi-launch": ("helper-mpi-launch", "--server", "gpu1", "--cmd", "hello.py", *env, "--dry-run"),
        "helper-fan-out": ("helper-fan-out", "--server", "gpu1", "--cmd", command, *env, "--total", "2"),
    }


@dataclass(frozen=True)
class StartUp:
    """A start-up file, the login shell whose it is, and what is said of it."""

    text: str
    said: str
    shell: str = "bash"
    file: str = ".start-up"


CASES = {
    "read": StartUp("read -r answer", SWALLOWED),
    "read two lines": StartUp("read -r answer; read -r answer", SWALLOWED),
    "read a part of a line": StartUp("head -c 10 >/dev/null", SWALLOWED),
    "cat": StartUp("cat", SWALLOWED),
    "exec zsh": StartUp("exec zsh", SWALLOWED),
    "exec fish": StartUp("exec fish", SWALLOWED),
    "exec tcsh": StartUp("exec tcsh", SWALLOWED),
    "read, exec zsh": StartUp("read -r answer; exec zsh", SWALLOWED),
    "exit": StartUp("exit 0", ENDED),
    "sleep": StartUp("sleep 20", LATE),
    "2 MB of noise": StartUp("head -c 2000000 /dev/urandom; head -c 100000 /dev/urandom >&2", WORKS),
    "read of zsh": StartUp("read -r answer", SWALLOWED, "zsh", ".zshenv"),
    "read of fish": StartUp("read answer", SWALLOWED, "fish", ".config/fish/config.fish"),
    "read of tcsh": StartUp('set answer = "$<"', SWALLOWED, "tcsh", ".tcshrc"),
}


class Account:
    """The account on the server: its login shell, and its start-up file."""

    def __init__(self, server: TestServer) -> None:
        self.server = server
        self._file = Path()
        self.use("bash")

    def use(self, shell: str) -> None:
        (self.server.home / "shell").write_text(shell)

    def have(self, start_up: StartUp) -> None:
        self.use(start_up.shell)
        self._file = self.server.home / start_up.file
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(f"{start_up.text}\n")

    def mend(self) -> None:
        self._file.unlink(missing_ok=True)
        self.use("bash")


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[Account]:
    """An sshd that has the login shell of the account run our commands, with two names."""
    command = (
        'if [ "$(cat "$HOME/shell")" = bash ]; then '
        '[ ! -e "$HOME/.start-up" ] || . "$HOME/.start-up"; eval "$SSH_ORIGINAL_COMMAND"; '
        'else exec "$(cat "$HOME/shell")" -c "$SSH_ORIGINAL_COMMAND"; fi'
    )
    addresses = f"127.0.0.1\nListenAddress {SECOND_ADDRESS}"
    options = {"ListenAddress": addresses, "ForceCommand": command, "MaxStartups": "200"}
    with TestServer("gpu1", tmp_path_factory.mktemp("login-shell"), ssh_key, options) as server:
        server.home.joinpath("shell").write_text("bash")
        yield Account(server)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, account: Account) -> Path:
    """A project that is prepared on the server, under both names."""
    second = replace(account.server, name="gpu2")
    second.address = SECOND_ADDRESS
    root = make_project(tmp_path_factory.mktemp("login-shell") / "project", [account.server, second])
    ended = remote_tool("prepare", cwd=root)
    assert ended.returncode == 0, ended.stderr
    return root


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    """The project with a job that runs, and one that ends, which is not known here yet."""
    root = tmp_path / "project"
    shutil.copytree(prepared, root)
    workspace = Workspace.find(root)
    running = workspace.start("gpu1", "sleep 600")
    workspace.start("gpu1", "echo said; echo made > made.txt")
    yield root
    workspace.stop_jobs(JobSelection(jobs=(running.id,)), signal="SIGKILL")


@pytest.mark.picked_case("read")
@pytest.mark.slow
@pytest.mark.row(138, 139)
@pytest.mark.parametrize("name", CASES)
def test_whatever_a_start_up_file_does_every_command_ends_and_says_so(
    account: Account, project: Path, tmp_path: Path, name: str
) -> None:
    start_up = CASES[name]
    for shell in {start_up.shell, *re.findall(r"exec (\w+)", start_up.text)}:
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed")
    commands = commands_with(f"canary-{tmp_path.name}")
    folders = {command: tmp_path / command for command in commands}
    for folder in folders.values():
        shutil.copytree(project, folder)
    account.have(start_up)
    try:
        ended = run_in_groups(commands, folders, start_up)
    finally:
        account.mend()
    for command, ran in ended.items():
        check(start_up, command, ran, folders[command])
        record_case(f"start-up file: {name}")
    if start_up.said:
        assert not list(account.server.home.rglob(f"canary-{tmp_path.name}"))
        running = Workspace.find(project).list_jobs(JobSelection(jobs=("1",))).jobs[0]
        assert running.state is JobState.RUNNING, (running.reason, {name: ran.err for name, ran in ended.items()})


def run_in_groups(commands: dict[str, tuple[str, ...]], folders: dict[str, Path], start_up: StartUp) -> dict[str, Ran]:
    """Run all at once; where they work, those that send the project wait for each other, and so do we."""
    alone = () if start_up.said else tuple(name for name in commands if name in SENDS)
    together = {name: words for name, words in commands.items() if name not in alone}
    ended: dict[str, Ran] = {}
    for group in (together, *({name: commands[name]} for name in alone)):
        ended |= run_at_once(group, folders, SETTINGS[start_up.said], within=BOUND)
    return ended


def check(start_up: StartUp, command: str, ran: Ran, folder: Path) -> None:
    shown = f"{command}: {ran.status}\n{ran.out}{ran.err}"
    assert ran.status >= 0, f"not within {BOUND} s: {shown}"
    assert "Traceback" not in ran.err, shown
    if not start_up.said or command in STARTS_NOTHING:
        assert ran.status == 0, shown
        return
    assert ran.status == 1, shown
    assert re.search(start_up.said, ran.out + ran.err), shown
    assert GUARD in ran.out + ran.err, shown
    assert not OURS.search(ran.out + ran.err), shown
    check_jobs(folder)


def check_jobs(folder: Path) -> None:
    """A job is failed only where it is sure that nothing was started, and no running one is taken for ended."""
    for job in Registry(folder / ".remote" / "jobs").load()[0]:
        if job.key == 1:
            assert job.state in {JobState.RUNNING, JobState.STARTING}
        elif job.key > 2 and job.state is JobState.FAILED:
            assert re.search(f"not started: {SWALLOWED}", job.reason)
