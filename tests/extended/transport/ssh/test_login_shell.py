"""A login shell that reads our stdin, or takes its time: it runs nothing of that, and the cause is named."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import LoginShellError, RemoteCommandError
from remote_tool.transport.ssh import login_shell
from remote_tool.transport.ssh.script import NOT_RUN, wrap
from remote_tool.workflows.agent_client import request_line
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.extended.transport.conftest import LogIn, Told

READS = r"a startup file of the login shell on first \(such as ~/\.bashrc\) reads standard input"


def forced(start_up: str) -> str:
    return f'{start_up}; eval "$SSH_ORIGINAL_COMMAND"'


def run_wrapped(script: str, stdin: bytes, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Have sh run what a login shell is asked to run."""
    return subprocess.run(["sh", "-c", wrap(script).command], input=stdin, cwd=cwd, check=False, capture_output=True)


@pytest.mark.row(138)
@pytest.mark.parametrize("start_up", ["read -r line", "read -r line; read -r line", "head -c 9 >/dev/null", "cat"])
async def test_only_what_carries_our_mark_is_run(
    make_server: MakeServer, log_in: LogIn, monkeypatch: pytest.MonkeyPatch, start_up: str
) -> None:
    """What follows a script that was swallowed is no script, whatever it holds."""
    monkeypatch.setattr(login_shell, "LONGEST_START", 0.5)
    server = make_server(ForceCommand=forced(start_up))
    async with log_in(server) as host:
        with pytest.raises(LoginShellError, match=READS) as caught:
            await host.run("touch ran", stdin=b"touch ran; echo $(touch ran)\n" * 3)
        async with host.open("touch ran") as channel:
            await channel.write(b"touch ran\n" * 3)
            await channel.write_eof()
            with pytest.raises(LoginShellError, match=READS):
                await channel.wait()
    assert caught.value.hint == "On first, put this line first in ~/.bashrc: [[ $- == *i* ]] || return"
    assert not list(server.home.glob("ran"))


@pytest.mark.picked
@pytest.mark.row(138)
def test_a_script_that_was_cut_off_is_not_run(tmp_path: Path) -> None:
    """The link may go in the middle of it, and the first half of a command may be one."""
    script = wrap("touch ran")
    for end in range(len(script.lines)):
        stdin = script.lines[:end]
        ended = subprocess.run(
            ["sh", "-c", script.command], input=stdin, cwd=tmp_path, check=False, capture_output=True
        )
        assert (ended.returncode, ended.stdout) == (NOT_RUN, b"")
    whole = subprocess.run(
        ["sh", "-c", script.command], input=script.lines, cwd=tmp_path, check=True, capture_output=True
    )
    assert whole.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ran"]


@pytest.mark.row(138)
def test_the_script_of_another_session_is_not_run(tmp_path: Path) -> None:
    ended = run_wrapped("true", wrap("touch ran").lines, tmp_path)
    assert (ended.returncode, list(tmp_path.iterdir())) == (NOT_RUN, [])


@pytest.mark.picked_case("bash")
@pytest.mark.row(138)
@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh", "busybox sh"])
def test_a_shell_that_takes_our_lines_for_commands_runs_none(tmp_path: Path, shell: str) -> None:
    """Whatever a start-up file has read of them before it became that shell."""
    words = shell.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{shell} is not installed")
    bad = 'echo "$(touch ran)" `touch ran`; touch ran | touch ran & \'\\" (touch ran) > ran \n touch ran'
    config = make_configuration([], tmp_path / "project")
    request = request_line(config, "run", {"command": bad, "environment": {"A": bad}, bad: [bad]}, "0" * 32)
    assert json.loads(request)["command"] == bad
    assert re.fullmatch(rb'[\w{}\[\]",:./\\-]+\n', request)
    script = wrap("true; touch ran; true").lines
    marked = script.partition(b"\n")[2]
    inputs = [script + request, marked + request, *(request[start:] for start in range(0, len(request), 37))]
    for stdin in inputs:
        subprocess.run(words, input=stdin, cwd=tmp_path, check=False, capture_output=True, timeout=30)
    assert [path.name for path in tmp_path.iterdir()] == ["project"]


@pytest.mark.row(139)
async def test_a_slow_login_shell_is_awaited_with_one_notice(
    make_server: MakeServer, log_in: LogIn, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_shell, "NOTICE_SECONDS", 0.2)
    async with log_in(make_server(ForceCommand=forced("sleep 1"))) as host:
        answers = await asyncio.gather(*(host.run("cat", stdin=b"answer") for _ in range(3)))
    assert [answer.stdout for answer in answers] == [b"answer"] * 3
    notices = [text for _, text in told.notices if "login shell" in text]
    assert len(notices) == 1
    assert notices[0].startswith("waiting up to 45 s for the login shell: a startup file, such as ~/.bashrc")


@pytest.mark.row(139)
def test_who_waits_hears_of_it_within_five_seconds() -> None:
    assert login_shell.NOTICE_SECONDS < 5
    assert login_shell.LONGEST_START + login_shell.END_SECONDS < 60


@pytest.mark.row(139)
@pytest.mark.parametrize(
    ("start_up", "kind", "said"),
    [
        ("sleep 100", RemoteCommandError, r"first: the login shell did not start the command within 0\.5 s"),
        ("cat >/dev/null", LoginShellError, READS),
    ],
)
async def test_a_login_shell_that_starts_nothing_is_given_up(
    make_server: MakeServer,
    log_in: LogIn,
    monkeypatch: pytest.MonkeyPatch,
    start_up: str,
    kind: type[Exception],
    said: str,
) -> None:
    """What ends with its stdin was reading it."""
    monkeypatch.setattr(login_shell, "LONGEST_START", 0.5)
    began = time.monotonic()
    async with log_in(make_server(ForceCommand=forced(start_up))) as host, host.open("echo answer") as channel:
        with pytest.raises(kind, match=said):
            await channel.wait()
    assert time.monotonic() - began < 60


@pytest.mark.row(139)
@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ("cat; exit 3", "first: the login shell did not run the command, and exited with status 3"),
        ("echo sorry; exit 3", "first: the login shell did not run the command: sorry"),
        ("kill -9 $$", "first: the login shell did not run the command, and exited with SIGKILL"),
    ],
)
async def test_no_message_quotes_our_own_script(make_server: MakeServer, log_in: LogIn, noise: str, said: str) -> None:
    async with log_in(make_server(ForceCommand=noise)) as host:
        with pytest.raises(RemoteCommandError) as caught:
            await host.run("echo a secret of ours")
    assert str(caught.value) == said
