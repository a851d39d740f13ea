"""What a connection does: scripts, their streams and their ends."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from remote_tool.errors import ConnectError, ConnectionLostError, RemoteCommandError
from remote_tool.transport.host import Exit
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import ssh_config
from remote_tool.transport.ssh.login_errors import Stage
from tests.extended.configuration import make_configuration
from tests.extended.transport.channels import (
    ALL_BYTES,
    check_every_verb,
    check_megabytes_both_ways,
    check_that_a_slow_reader_slows_the_command_down,
    check_that_an_ended_command_can_be_written_to,
    check_that_one_stream_can_be_read_while_the_other_is_full,
    read_some,
    read_to_end,
    stopped,
    until,
)
from tests.extended.transport.password_server import PasswordServer, password_server, trust

if TYPE_CHECKING:
    from remote_tool.transport.host import Host
    from tests.conftest import MakeServer
    from tests.extended.transport.conftest import LogIn, Told
    from tests.sshd import TestServer

# Output, input and status


@pytest.mark.row(37)
async def test_both_outputs_and_the_status_come_back_as_bytes(host: Host) -> None:
    """Bytes that are no UTF-8 change nothing."""
    completed = await host.run("cat; cat /dev/null; printf 'bad \\377' >&2; exit 7", stdin=ALL_BYTES, check=False)

    assert completed.stdout == ALL_BYTES
    assert completed.stderr == b"bad \xff"
    assert completed.exit == Exit(7)
    assert not completed.ok
    assert (await host.run("echo alive")).stdout == b"alive\n"


@pytest.mark.parametrize("status", [0, 1, 2, 126, 127, 128, 137, 255])
async def test_the_exit_status_is_the_commands_own(host: Host, status: int) -> None:
    assert (await host.run(f"exit {status}", check=False)).exit == Exit(status)


@pytest.mark.row(36)
async def test_a_signal_is_told_apart_from_a_status(host: Host) -> None:
    assert (await host.run("kill -TERM $$", check=False)).exit == Exit(None, "TERM")
    with pytest.raises(RemoteCommandError, match="was killed by SIGTERM") as caught:
        await host.run("kill -TERM $$")
    assert caught.value.exit_status == 128 + signal.SIGTERM


async def test_a_failed_command_is_an_error_with_the_end_of_what_it_said(host: Host) -> None:
    with pytest.raises(RemoteCommandError) as caught:
        await host.run("echo first >&2; echo 'no such thing' >&2; exit 3", label="look for a thing")

    assert str(caught.value) == "first: look for a thing failed with status 3: no such thing"
    assert caught.value.stderr_tail == "first\nno such thing"
    assert (caught.value.server, caught.value.command, caught.value.exit_status) == ("first", "look for a thing", 3)


@pytest.mark.row(58, 107)
async def test_a_script_may_hold_any_character(host: Host) -> None:
    """Quotes, newlines, exclamation marks, percent signs, backslashes, and bytes that are no UTF-8."""
    text = "".join(chr(number) for number in range(1, 128)) + "äöü€\udcff"
    script = "cat <<'END OF IT'\n" + text + "\nEND OF IT\n"
    assert (await host.run(script)).stdout == text.encode("utf-8", "surrogateescape") + b"\n"


async def test_a_script_with_a_nul_is_refused_here(host: Host) -> None:
    with pytest.raises(ValueError, match="NUL"):
        await host.run("echo \0")


@pytest.mark.row(56)
@pytest.mark.parametrize("size", [100, 10_000, 128 * 1024, 1_000_000])
async def test_a_script_may_be_of_any_length(host: Host, size: int) -> None:
    """Nothing of it is in argv, and stdin after it is the command's own."""
    script = f"text='{'x' * size}'\nprintf %s \"$text\" | wc -c\ncat"
    assert (await host.run(script, stdin=b"the rest")).stdout.split() == [str(size).encode(), b"the", b"rest"]


@pytest.mark.row(111)
async def test_a_script_is_not_seen_in_the_list_of_processes(host: Host) -> None:
    """Secrets travel in stdin."""
    seen = (await host.run("secret=canary4711; cat /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; true")).stdout
    assert b"eval" in seen
    assert b"canary4711" not in seen


async def test_stdin_arrives_while_the_command_runs_and_its_end_is_passed_on(host: Host) -> None:
    async with host.open('while read -r line; do echo "got $line"; done; echo end') as channel:
        for word in (b"one", b"two"):
            await channel.write(word + b"\n")
            assert await channel.read() == b"got " + word + b"\n"
        await channel.write_eof()
        assert await read_to_end(channel) == b"end\n"
        assert await channel.wait() == Exit(0)
        assert await channel.read() == b""


async def test_megabytes_go_both_ways_at_once(host: Host) -> None:
    await check_megabytes_both_ways(host)


async def test_keys_are_exchanged_again_in_the_middle(make_server: MakeServer, log_in: LogIn) -> None:
    """The host key is shown again then; it must be the same, and the connection stays what it was."""
    async with log_in(make_server(RekeyLimit="1M")) as host:
        assert len((await host.run("head -c 8000000 /dev/zero")).stdout) == 8_000_000
        assert host._connection.progress.stage is Stage.READY  # type: ignore[attr-defined]
        assert (await host.run("echo alive")).stdout == b"alive\n"


@pytest.mark.row(37)
async def test_a_slow_reader_slows_the_command_down(host: Host) -> None:
    await check_that_a_slow_reader_slows_the_command_down(host)


@pytest.mark.row(37)
async def test_one_stream_can_be_read_while_the_other_is_full(host: Host) -> None:
    await check_that_one_stream_can_be_read_while_the_other_is_full(host)


async def test_the_end_can_be_awaited_before_the_output_is_read(host: Host) -> None:
    async with host.open("head -c 10000000 /dev/zero; exit 4") as channel:
        assert await channel.wait() == Exit(4)
        assert len(await read_to_end(channel)) == 10_000_000


async def test_writing_to_an_ended_command_raises_no_error(host: Host) -> None:
    await check_that_an_ended_command_can_be_written_to(host)


# Limits


async def test_a_command_that_takes_too_long_is_given_up(host: Host) -> None:
    began = time.monotonic()
    with pytest.raises(RemoteCommandError, match=r"first: sleep 60: timed out after 0\.2 s") as caught:
        await host.run("sleep 60", timeout=0.2)
    assert time.monotonic() - began < 30
    assert caught.value.exit_status == 124
    assert (await host.run("echo alive")).ok


async def fail_after_reading(host: Host, script: str) -> int:
    """Start a script that prints a pid, and give it up by an error."""
    pids = []
    with suppress(ZeroDivisionError):
        async with host.open(script) as channel:
            pids.append(int(await channel.read()))
            raise ZeroDivisionError
    return pids[0]


@pytest.mark.row(46)
async def test_a_command_that_was_given_up_is_hung_up(tmp_path: Path) -> None:
    """Else it would keep its session, and the eleventh command would wait for the first."""
    async with password_server(PasswordServer()) as door:
        config = replace(make_configuration([], tmp_path), servers={"first": door.server(password=door.password)})
        async with HostPool(config, confirm=trust) as pool:
            host = await pool.host("first")
            with pytest.raises(RemoteCommandError, match="timed out after"):
                await host.run("sleep 60", timeout=2)  # it has begun by then
            await asyncio.wait_for(door.signalled.wait(), 30)
    assert door.signals == ["HUP"]


@pytest.mark.skipif(os.geteuid() == 0, reason="sshd passes no signals on to commands of root")
async def test_commands_that_were_given_up_end_on_the_server(host: Host) -> None:
    pids = [await fail_after_reading(host, "echo $$; sleep 60; true") for _ in range(11)]
    assert await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


# The pid comes from the new session.
DETACHED = "setsid sh -c 'echo $$; exec sleep 30 >/dev/null' 2>/dev/null </dev/null & sleep 5"


@pytest.mark.row(14)
async def test_detached_processes_outlive_a_hang_up(host: Host) -> None:
    """Jobs live in sessions of their own."""
    pid = await fail_after_reading(host, DETACHED)
    assert (await host.run("echo alive")).ok
    assert Path(f"/proc/{pid}").exists()
    os.kill(pid, signal.SIGKILL)


@pytest.mark.row(37)
async def test_a_command_that_says_too_much_is_given_up(host: Host) -> None:
    with pytest.raises(RemoteCommandError, match="flood: printed more than 100000 bytes"):
        await host.run("yes", limit=100_000, label="flood")
    with pytest.raises(RemoteCommandError, match="printed more than 100000 bytes"):
        await host.run("yes >&2", limit=100_000)
    assert (await host.run("head -c 100000 /dev/zero", limit=100_000)).stdout == bytes(100_000)


async def test_leaving_the_context_ends_stdin_and_frees_the_place(host: Host, server: TestServer) -> None:
    async with host.open("echo $$; cat >/dev/null; echo gone > $HOME/mark") as channel:
        await read_some(channel, b"\n")
    assert await until((server.home / "mark").exists)


@pytest.mark.row(61)
async def test_cancelling_leaves_the_connection_usable_and_no_task_behind(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the session is only just being opened."""

    async def hold() -> None:
        async with host.open("cat") as channel:
            await channel.read()

    before = asyncio.all_tasks()
    for turns in range(12):
        task = asyncio.create_task(hold())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await host.run("echo alive")).stdout == b"alive\n"
    # What was being opened is closed when the server has answered.
    assert await until(lambda: asyncio.all_tasks() == before)
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.row(61)
async def test_a_session_whose_caller_was_cancelled_is_closed_when_it_opens(
    make_server: MakeServer, log_in: LogIn
) -> None:
    """The library forgets it, and the server would go on counting it."""
    server = make_server(MaxSessions="1")
    async with log_in(server) as host:
        with stopped(server):
            opening = asyncio.create_task(host.run("true"))
            await asyncio.sleep(0.05)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        assert (await host.run("echo next")).stdout == b"next\n"


async def test_a_reader_is_woken_when_its_channel_is_closed(host: Host) -> None:
    async with host.open("sleep 60") as channel:
        reading = asyncio.create_task(channel.read())
        await asyncio.sleep(0)
        channel.close()
        assert await asyncio.wait_for(reading, 30) == b""


# The number of sessions


@pytest.mark.row(46)
@pytest.mark.parametrize("allowed", [1, 2, 10])
async def test_more_commands_than_sessions_wait_for_each_other(
    make_server: MakeServer, log_in: LogIn, allowed: int
) -> None:
    """A server with MaxSessions 1 does all of them, one by one."""
    async with log_in(make_server(MaxSessions=str(allowed))) as host:
        answers = await asyncio.gather(*(host.run(f"sleep 0.02; echo {number}") for number in range(15)))
    assert [answer.stdout for answer in answers] == [b"%d\n" % number for number in range(15)]


@pytest.mark.row(46)
async def test_a_given_up_session_makes_room_when_its_command_ends(make_server: MakeServer, log_in: LogIn) -> None:
    """A session counts for sshd until its command has ended."""
    async with log_in(make_server(MaxSessions="1")) as host:
        async with host.open("trap '' PIPE HUP; echo begun; sleep 0.5") as channel:
            await read_some(channel, b"begun")
        assert (await host.run("echo next")).stdout == b"next\n"


@pytest.mark.row(46)
async def test_a_server_without_sessions_is_a_clear_error(make_server: MakeServer, log_in: LogIn) -> None:
    async with log_in(make_server(MaxSessions="0")) as host:
        with pytest.raises(ConnectError, match="first: the server refused a new session: open failed") as caught:
            await host.run("true")
    assert "MaxSessions" in caught.value.hint


@pytest.mark.row(36)
async def test_a_session_that_is_asked_for_as_the_connection_breaks_is_a_lost_connection(
    server: TestServer, log_in: LogIn
) -> None:
    """Not a server that opens no session: what is lost is asked for again."""
    async with log_in(server) as host:
        # Just before the session is opened, and the end is heard of just after.
        asyncio.get_running_loop().call_soon(host._connection.raw.abort)  # type: ignore[attr-defined]
        with pytest.raises(ConnectionLostError):
            await host.run("true")


# Noise and login shells


@pytest.mark.row(52, 53)
@pytest.mark.parametrize(
    "noise",
    [
        pytest.param("echo Welcome", id="a line"),
        pytest.param("printf 'no newline'", id="no newline"),
        pytest.param("head -c 2000000 /dev/zero", id="2 MB"),
        pytest.param("printf '\\000%s\\n' 0123456789abcdef0123456789abcdef; echo '{\"ok\": true}'", id="an old answer"),
        pytest.param("echo out; echo err >&2; printf '\\000'", id="both outputs"),
    ],
)
async def test_output_of_the_login_shell_is_cut_off(
    make_server: MakeServer, log_in: LogIn, told: Told, noise: str
) -> None:
    """Only what follows this call's own mark is an answer."""
    shell = make_server(ForceCommand=f'{noise}; eval "$SSH_ORIGINAL_COMMAND"')
    async with log_in(shell) as host:
        completed = await host.run("echo answer; echo problem >&2; cat", stdin=b"input")
        async with host.open("echo again") as channel:
            assert await read_to_end(channel) == b"again\n"
    assert (completed.stdout, completed.stderr) == (b"answer\ninput", b"problem\n")
    assert "bytes of noise before it" in told.traces[-1][1]


@pytest.mark.row(53)
async def test_an_old_answer_that_is_played_again_is_not_taken(make_server: MakeServer, log_in: LogIn) -> None:
    """The server keeps all that it ever said to us, and says it first the next time."""
    command = 'cat "$HOME/said" 2>/dev/null; eval "$SSH_ORIGINAL_COMMAND" | tee -a "$HOME/said"'
    server = make_server(ForceCommand=command)
    async with log_in(server) as host:
        assert (await host.run("echo one")).stdout == b"one\n"
        assert b"\none\n" in (server.home / "said").read_bytes()
        assert (await host.run("echo two")).stdout == b"two\n"


@pytest.mark.row(52)
async def test_endless_noise_is_an_error(make_server: MakeServer, log_in: LogIn) -> None:
    """Within bounds of memory."""
    async with log_in(make_server(ForceCommand="yes")) as host:
        with pytest.raises(RemoteCommandError, match="printed more than 16777216 bytes before the command started"):
            await host.run("echo answer")


@pytest.mark.row(54)
async def test_a_login_shell_that_lets_nobody_in_is_named(make_server: MakeServer, log_in: LogIn) -> None:
    """Nologin ends with status 1, or with 0, but never runs anything."""
    for status in (0, 1):
        command = f"echo This account is currently not available.; exit {status}"
        async with log_in(make_server(f"shell{status}", ForceCommand=command)) as host:
            with pytest.raises(
                RemoteCommandError, match=r"the login shell did not run the command: This account is currently"
            ):
                await host.run("echo answer")
            async with host.open("echo answer") as channel:
                assert await channel.read() == b""
                with pytest.raises(RemoteCommandError, match="the login shell did not run the command"):
                    await channel.wait()


@pytest.mark.row(54)
@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "zsh", "fish", "tcsh", "csh", "ksh", "mksh"])
async def test_every_login_shell_runs_our_scripts(make_server: MakeServer, log_in: LogIn, shell: str) -> None:
    """A login shell is started by sshd with -c and the command; here the command hands on to another one."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    async with log_in(make_server(ForceCommand=f'exec {program} -c "$SSH_ORIGINAL_COMMAND"')) as host:
        await check_every_verb(host)


@pytest.mark.row(33)
@pytest.mark.parametrize("program", ["busybox", "bash", "dash"])
async def test_every_kind_of_sh_runs_our_scripts(
    make_server: MakeServer, log_in: LogIn, tmp_path: Path, program: str
) -> None:
    """/bin/sh may be busybox or bash."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    sh = tmp_path / "sh"
    sh.symlink_to(found)
    command = f"""exec {sh} -c "$(printf %s "$SSH_ORIGINAL_COMMAND" | sed 's|/bin/sh|{sh}|')" """
    async with log_in(make_server(ForceCommand=command)) as host:
        await check_every_verb(host)


@pytest.mark.row(57, 117)
async def test_no_variable_and_no_agent_goes_along(
    host: Host, monkeypatch: pytest.MonkeyPatch, log_in: LogIn, server: TestServer
) -> None:
    """Nothing rests on AcceptEnv, and the server cannot use our keys."""
    monkeypatch.setenv("LC_CANARY", "canary of ours")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nonexistent")
    Path.home().joinpath(".ssh").mkdir()
    Path.home().joinpath(".ssh/config").write_text("Host *\nForwardAgent yes\nSendEnv LC_*\nSetEnv LC_OTHER=canary\n")
    async with log_in(server) as other:
        environment = (await other.run("env")).stdout
    assert b"SSH_CONNECTION" in environment
    assert b"SSH_AUTH_SOCK" not in environment
    assert b"canary" not in environment
    assert host.name == "first"


# The link


@pytest.mark.row(36)
async def test_a_lost_link_is_an_error_never_a_result(server: TestServer, log_in: LogIn) -> None:
    """Half an output with no exit status is not success."""
    async with log_in(server) as host:
        async with host.open("echo begun; sleep 60") as channel:
            await read_some(channel, b"begun\n")
            running = asyncio.create_task(host.run("sleep 60", check=False))
            await asyncio.sleep(0.05)
            server.drop_connections()
            with pytest.raises(ConnectionLostError, match="first: the connection was lost"):
                await channel.read()
            with pytest.raises(ConnectionLostError):
                await channel.wait()
            with pytest.raises(ConnectionLostError):
                await running
        with pytest.raises(ConnectionLostError, match="first: the connection was lost") as caught:
            await host.run("true")
    assert caught.value.program_exit_code == 4
    assert caught.value.hint


@pytest.mark.row(36, 46)
async def test_commands_that_wait_for_a_session_hear_of_a_lost_link(server: TestServer, log_in: LogIn) -> None:
    async with log_in(server) as host:
        running = [asyncio.create_task(host.run("sleep 60")) for _ in range(35)]
        await asyncio.sleep(0.2)
        server.drop_connections()
        async with asyncio.timeout(30):
            results = await asyncio.gather(*running, return_exceptions=True)
    assert {type(result) for result in results} == {ConnectionLostError}


@pytest.mark.row(36)
async def test_output_from_before_the_link_broke_is_still_read(server: TestServer, log_in: LogIn) -> None:
    async with log_in(server) as host, host.open("printf 12345; sleep 60") as channel:
        assert await channel.read(size=1) == b"1"
        server.drop_connections()
        with pytest.raises(ConnectionLostError):
            await channel.wait()
        assert await channel.read() == b"2345"
        with pytest.raises(ConnectionLostError):
            await channel.read()


@pytest.mark.row(36)
async def test_a_session_killed_on_the_server_is_not_a_success(host: Host, server: TestServer) -> None:
    """The shell dies by a signal that sshd reports; the status is never taken for 0."""
    async with host.open("echo $$; exec sleep 60") as channel:
        pid = int((await channel.read()).split()[0])
        os.kill(pid, signal.SIGKILL)
        assert await channel.wait() == Exit(None, "KILL")
    assert server.session_pids()


@pytest.mark.row(43, 61)
async def test_a_dead_peer_does_not_hold_up_the_end(server: TestServer, log_in: LogIn) -> None:
    """The pool closes within a bound although the server says nothing any more."""
    with ExitStack() as stack:
        async with log_in(server) as host:
            await host.run("true")
            stack.enter_context(stopped(server))
            began = time.monotonic()
            running = asyncio.create_task(host.run("true"))
            await asyncio.sleep(0.05)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        # A closing that waits for the peer would wait for the keepalive, a minute.
        assert time.monotonic() - began < 20


@pytest.mark.row(43)
@pytest.mark.slow
async def test_a_silent_link_is_noticed_by_keepalive(
    server: TestServer, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a command; the real interval is 15 s, four times."""
    monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", 0.2)
    async with log_in(server) as host:
        running = asyncio.create_task(host.run("sleep 60"))
        await asyncio.sleep(0.2)
        with stopped(server), pytest.raises(ConnectionLostError, match="the connection was lost"):
            await asyncio.wait_for(running, 60)


@pytest.mark.row(43)
def test_keepalive_is_on_by_default() -> None:
    """The library has it off."""
    assert (ssh_config.KEEPALIVE_SECONDS, ssh_config.KEEPALIVE_COUNT) == (15, 4)


@pytest.mark.row(64)
def test_the_ssh_library_has_no_known_holes() -> None:
    """Older ones have holes in key exchange, SCP and packet sizes."""
    wanted = [Requirement(text) for text in requires("remote-tool") or []]
    (asyncssh,) = [requirement for requirement in wanted if requirement.name == "asyncssh"]
    assert not list(asyncssh.specifier.filter(["2.14.1", "2.23.1", "2.23.99"]))
    assert asyncssh.specifier.contains("2.24.0")


async def test_each_remote_command_is_traced_with_its_time(host: Host, told: Told) -> None:
    await host.run("# a remark\n\nsleep 0.05\necho secret")
    server, label, seconds = told.traces[-1]
    assert (server, label) == ("first", "sleep 0.05")
    assert 0.05 <= seconds < 60
    assert "log in to 127.0.0.1:" in told.traces[0][1]
