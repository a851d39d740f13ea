"""A login that is kept: the same seam over a master of OpenSSH, and an own login wherever that does not do."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.errors import ConnectionLostError
from remote_tool.transport.host import Exit
from remote_tool.transport.kept import connection as kept_connection
from remote_tool.transport.kept import start as kept_start
from remote_tool.transport.kept.connection import KeptConnection, find_kept
from remote_tool.transport.kept.folder import MOST_SESSIONS, KeptFolder, kept_folder, private_folder
from remote_tool.transport.kept.listing import end_kept, kept_logins
from remote_tool.transport.kept.master import MasterClient, MasterError, pid_of_master
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import client_keys, ssh_config
from tests.extended.configuration import make_configuration
from tests.extended.transport.channels import (
    ALL_BYTES,
    check_every_verb,
    check_megabytes_both_ways,
    check_that_a_slow_reader_slows_the_command_down,
    check_that_an_ended_command_can_be_written_to,
    check_that_one_stream_can_be_read_while_the_other_is_full,
    read_some,
    stopped,
    until,
)
from tests.kept_logins import keeping_logins
from tests.processes import is_running, read_of
from tests.sshd import make_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Host
    from remote_tool.transport.kept.record import Record
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What a test keeps ends with it."""
    with keeping_logins(monkeypatch) as folder:
        yield folder


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load may take more than a second for anything."""
    monkeypatch.setattr(kept_connection, "ANSWER_SECONDS", 20.0)


@pytest.fixture
def config(server: TestServer, tmp_path: Path) -> Config:
    return make_configuration([server], tmp_path / "project")


async def keep(config: Config, name: str = "first") -> tuple[KeptFolder, Record]:
    """Log in, and wait for what that keeps."""
    async with HostPool(config) as pool:
        await pool.host(name)
    place = kept_folder(config, name)
    assert place is not None
    return place, await kept(config, name)


async def kept(config: Config, name: str = "first") -> Record:
    assert await until(lambda: find_kept(config, name) is not None)
    found = find_kept(config, name)
    assert found is not None
    return found.record


@pytest.fixture
async def with_agent(server: TestServer, config: Config) -> AsyncIterator[Config]:
    """The key is in an agent."""
    folder = Path(tempfile.mkdtemp(prefix="rta"))
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(folder / "agent")], stdout=subprocess.DEVNULL)
    try:
        assert await until(lambda: answers(folder / "agent"))
        os.environ["SSH_AUTH_SOCK"] = str(folder / "agent")
        subprocess.run(["ssh-add", "-q", str(server.key)], check=True, capture_output=True)
        yield replace(config, servers={"first": replace(config.servers["first"], private_key=None)})
    finally:
        os.environ.pop("SSH_AUTH_SOCK", None)
        agent.kill()
        agent.wait()
        shutil.rmtree(folder)


def answers(address: Path) -> bool:
    """Whether a program listens at a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(address)) == 0


@asynccontextmanager
async def kept_host(config: Config) -> AsyncIterator[Host]:
    """Use a kept login."""
    await keep(config)
    async with HostPool(config) as pool:
        host = await pool.host("first")
        assert isinstance(link(host), KeptConnection)
        yield host


def link(host: Host) -> Any:
    return host._connection  # type: ignore[attr-defined]


@pytest.fixture
async def host(config: Config) -> AsyncIterator[Host]:
    async with kept_host(config) as host:
        yield host
        assert link(host).own_login is None, "the kept login carried everything"


# The seam


async def test_every_verb_works_over_a_kept_login(host: Host, server: TestServer) -> None:
    await check_every_verb(host)
    assert server.log().count("Accepted publickey") == 2, "the login, and the one that is kept"


@pytest.mark.parametrize("status", [0, 1, 126, 128, 137, 255])
async def test_the_exit_status_is_the_commands_own(host: Host, status: int) -> None:
    assert (await host.run(f"exit {status}", check=False)).exit == Exit(status)


async def test_an_end_by_a_signal_is_no_result(host: Host) -> None:
    """A master does not tell it from a session that the server closed."""
    with pytest.raises(ConnectionLostError, match="the session ended without an exit status"):
        await host.run("echo begun; kill -TERM $$", check=False)
    assert (await host.run("echo next")).stdout == b"next\n"


@pytest.mark.row(36, 60)
@pytest.mark.slow
async def test_a_silent_command_whose_session_the_server_closed_is_no_result_and_not_repeated(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(ChannelTimeout="session:command=1s")
    async with kept_host(make_configuration([server], tmp_path / "project")) as host:
        with pytest.raises(ConnectionLostError, match="the session ended without an exit status"):
            await host.run('echo started >> "$HOME/starts"; sleep 50', check=False)
    # On a busy server it may not even have begun.
    starts = server.home / "starts"
    assert (starts.read_text() if starts.exists() else "") in {"", "started\n"}


async def test_megabytes_go_both_ways_at_once(host: Host) -> None:
    await check_megabytes_both_ways(host)


async def test_a_slow_reader_slows_the_command_down(host: Host) -> None:
    await check_that_a_slow_reader_slows_the_command_down(host)


async def test_one_stream_can_be_read_while_the_other_is_full(host: Host) -> None:
    await check_that_one_stream_can_be_read_while_the_other_is_full(host)


async def test_writing_to_a_command_that_has_ended_is_no_error(host: Host) -> None:
    await check_that_an_ended_command_can_be_written_to(host)


async def test_leaving_the_context_ends_stdin(host: Host, server: TestServer) -> None:
    async with host.open("echo $$; cat >/dev/null; echo gone > $HOME/mark") as channel:
        await read_some(channel, b"\n")
    assert await until((server.home / "mark").exists)


async def test_a_command_that_was_given_up_is_hung_up(host: Host) -> None:
    """A master passes no signals on, so a second session sends it."""
    with suppress(ZeroDivisionError):
        async with host.open("echo $$; sleep 60; true") as channel:
            pid = int((await channel.read()).split()[0])
            raise ZeroDivisionError
    assert await until(lambda: not is_running(pid))


async def test_noise_of_the_login_shell_is_cut_off(make_server: MakeServer, tmp_path: Path) -> None:
    shell = make_server("first", ForceCommand='echo Welcome; echo err >&2; eval "$SSH_ORIGINAL_COMMAND"')
    config = make_configuration([shell], tmp_path / "project")
    async with kept_host(config) as host:
        completed = await host.run("echo answer; echo problem >&2; cat", stdin=ALL_BYTES)
    assert (completed.stdout, completed.stderr) == (b"answer\n" + ALL_BYTES, b"problem\n")


# When an own login takes over


@pytest.mark.row(182)
async def test_a_dead_master_is_forgotten_and_started_again(config: Config) -> None:
    _, record = await keep(config)
    pid = await pid_of_master(record.socket, 20)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with HostPool(config) as pool:
        host = await pool.host("first")
        assert (await host.run("echo in")).stdout == b"in\n"
    assert (await kept(config)).socket != record.socket


@pytest.mark.row(182)
async def test_a_stopped_master_costs_a_second_and_runs_nothing_twice(
    config: Config, server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connection, "ANSWER_SECONDS", 1.0)
    _, record = await keep(config)
    pid = await pid_of_master(record.socket, 20)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        async with HostPool(config) as pool:
            host = await pool.host("first")
            async with asyncio.timeout(300):
                await host.run("echo ran >> $HOME/ran")
            assert link(host).own_login is not None
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await until(lambda: find_kept(config, "first") is not None)
    assert (server.home / "ran").read_text() == "ran\n"
    os.kill(pid, signal.SIGKILL)


@pytest.mark.row(182)
async def test_a_master_that_is_stopped_in_the_middle_is_a_lost_link(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connection, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(kept_connection, "LONGEST_SILENCE", 3.0)
    async with kept_host(config) as host, host.open("echo begun; sleep 60") as channel:
        await read_some(channel, b"begun\n")
        pid = await pid_of_master(link(host)._record.socket, 20)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLostError):
                await channel.read()
        finally:
            os.kill(pid, signal.SIGKILL)
        assert not link(host).alive


@pytest.mark.row(182)
async def test_a_lost_link_is_an_error_never_a_result(config: Config, server: TestServer) -> None:
    async with kept_host(config) as host:
        async with host.open("echo begun; sleep 60") as channel:
            await read_some(channel, b"begun\n")
            server.drop_connections()
            with pytest.raises(ConnectionLostError, match="first: the connection was lost"):
                await channel.read()
            with pytest.raises(ConnectionLostError):
                await channel.wait()
        with pytest.raises(ConnectionLostError):
            await host.run("true")


@pytest.mark.row(182)
async def test_a_silent_link_is_noticed_by_keepalive(
    config: Config, server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a cable pulled, another network, or a laptop that slept: the real interval is 15 s, four times."""
    monkeypatch.setattr(ssh_config, "KEEPALIVE_SECONDS", 1.0)
    async with kept_host(config) as host, host.open("echo begun; sleep 60") as channel:
        await read_some(channel, b"begun\n")
        with stopped(server), pytest.raises(ConnectionLostError):
            async with asyncio.timeout(300):
                await channel.read()


@pytest.mark.row(183)
async def test_more_sessions_than_a_login_may_have_go_over_an_own_one(config: Config) -> None:
    """Whoever has them: the locks hold for all programs of this machine."""
    place, _ = await keep(config)
    slots = [place.take_slot() for _ in range(MOST_SESSIONS)]
    assert None not in slots
    assert place.take_slot() is None
    async with HostPool(config) as pool:
        host = await pool.host("first")
        assert (await host.run("echo in")).stdout == b"in\n"
        assert link(host).own_login is not None
    for slot in slots:
        os.close(slot or 0)
    assert place.sessions == 0


@pytest.mark.row(183)
async def test_a_server_that_refuses_a_session_gets_an_own_login(make_server: MakeServer, tmp_path: Path) -> None:
    config = make_configuration([make_server("first", MaxSessions="1")], tmp_path / "project")
    await keep(config)
    async with HostPool(config) as pool:
        host = await pool.host("first")
        async with host.open("cat") as channel:
            await channel.start()
            assert (await host.run("echo in")).stdout == b"in\n"


@pytest.mark.row(183)
async def test_commands_at_once_start_one_master(config: Config, server: TestServer) -> None:
    async def command() -> None:
        async with HostPool(config) as pool:
            await (await pool.host("first")).run("true")

    await asyncio.gather(*(command() for _ in range(8)))
    record = await kept(config)
    assert await pid_of_master(record.socket, 20) is not None
    assert server.log().count("Accepted publickey") == 8 + 1


# What must still be so


def _other_user(config: Config, _: Record) -> Config:
    return replace(config, servers={"first": replace(config.servers["first"], username="other")})


def _other_key(config: Config, _: Record) -> None:
    key = config.servers["first"].private_key
    assert key is not None
    key.with_suffix(".new").write_bytes(key.read_bytes())
    key.with_suffix(".new").rename(key)


def _ssh_config(_: Config, __: Record) -> None:
    (Path.home() / ".ssh").mkdir(exist_ok=True)
    (Path.home() / ".ssh" / "config").write_text("Host *\nPort 1\n")


def _forgotten_host_key(config: Config, _: Record) -> None:
    config.local.known_hosts.unlink()


def _revoked_host_key(config: Config, _: Record) -> None:
    text = config.local.known_hosts.read_text()
    config.local.known_hosts.write_text(text + "@revoked " + text)


def _foreign_socket(_: Config, record: Record) -> None:
    record.socket.chmod(0o666)


def _linked_socket(_: Config, record: Record) -> None:
    record.socket.rename(record.socket.with_name("moved"))
    record.socket.symlink_to("moved")


def _other_format(_: Config, record: Record) -> None:
    file = record.socket.with_name("record.json")
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))


def _half_record(_: Config, record: Record) -> None:
    file = record.socket.with_name("record.json")
    file.write_text(file.read_text()[:100])


@pytest.mark.parametrize(
    "change",
    [
        *(_other_user, _other_key, _ssh_config, _forgotten_host_key, _revoked_host_key),
        *(_foreign_socket, _linked_socket, _other_format, _half_record),
    ],
)
@pytest.mark.row(180, 181)
async def test_a_login_whose_settings_have_changed_is_not_used(
    make_server: MakeServer, tmp_path: Path, change: Callable[[Config, Record], Config | None]
) -> None:
    server = make_server("first")
    own = tmp_path / "own-key"
    shutil.copy(server.key, own)
    config = make_configuration([server], tmp_path / "project")
    config = replace(config, servers={"first": replace(config.servers["first"], private_key=own)})
    place, record = await keep(config)
    try:
        assert find_kept(change(config, record) or config, "first") is None
    finally:
        assert await pid_of_master(record.socket, 20) is not None or record.socket.is_symlink()
        await end_kept(place, record)


@pytest.mark.row(181)
def test_a_folder_that_others_could_use_is_not_used(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = private_folder()
    assert folder == runtime / "remote-tool"
    folder.chmod(0o755)
    assert private_folder() is None
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert private_folder() is None
    folder.unlink()
    runtime.chmod(0o777)
    assert private_folder() is None
    runtime.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert private_folder() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.row(181)
def test_a_folder_of_another_user_is_not_used(runtime: Path) -> None:
    folder = runtime / "remote-tool"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    assert private_folder() is None


@pytest.mark.row(191)
def test_without_a_folder_for_temporary_files_nothing_is_kept(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert kept_folder(config, "first") is None
    (tmp_path / "none").touch()
    assert kept_folder(config, "first") is None


def test_a_path_that_is_too_long_for_a_socket_is_not_used(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert kept_folder(config, "first") is None


# What is kept


@pytest.mark.row(184)
async def test_nothing_is_kept_with_0(config: Config, server: TestServer, runtime: Path) -> None:
    config = replace(config, keep_connections=0)
    async with HostPool(config) as pool:
        await (await pool.host("first")).run("true")
    assert list(runtime.iterdir()) == []
    assert server.log().count("Accepted publickey") == 1


@pytest.mark.row(184)
async def test_without_an_ssh_program_nothing_is_kept(
    config: Config, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    async with HostPool(config) as pool:
        await (await pool.host("first")).run("true")
    assert not list(runtime.glob("*/*/*"))


@pytest.mark.row(180)
async def test_a_key_with_a_passphrase_is_not_kept(
    server: TestServer, config: Config, tmp_path: Path, runtime: Path
) -> None:
    """The login could not be repeated without asking again."""
    key = make_key(tmp_path / "locked", passphrase="canary4711")
    with (server.folder / "authorized_keys").open("a") as file:
        file.write(key.with_suffix(".pub").read_text())
    config = replace(config, servers={"first": replace(config.servers["first"], private_key=key)})
    async with HostPool(config, ask_password=lambda _: "canary4711") as pool:
        await (await pool.host("first")).run("true")
    assert not list(runtime.glob("*/*/*"))


@pytest.mark.parametrize(
    "line", ["Include */other", "Include commands", "Match exec true\nPort 1", "Ciphers aes256-ctr", "User ${SOMEBODY}"]
)
@pytest.mark.row(180)
async def test_what_ssh_could_not_repeat_exactly_is_not_kept(
    config: Config, runtime: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("SOMEBODY", "else")
    (Path.home() / ".ssh").mkdir()
    (Path.home() / ".ssh" / "config").write_text(f"Host *\n{line}\n")
    (Path.home() / ".ssh" / "commands").write_text("Match exec true\nPort 1\n")
    async with HostPool(config) as pool:
        await (await pool.host("first")).run("true")
    assert not list(runtime.glob("*/*/*"))


@pytest.mark.row(180)
@pytest.mark.parametrize("changed", ["one", "two", "later", "folder/three.conf", "folder/four.conf"])
async def test_a_login_is_not_used_after_an_included_file_has_changed(config: Config, changed: str) -> None:
    folder = Path.home() / ".ssh"
    (folder / "folder").mkdir(parents=True)
    (folder / "config").write_text(f"Include one\nHost *\nInclude {folder}/later ~/.ssh/folder/*.conf\n")
    (folder / "one").write_text("Include two\n")
    for name in ("two", "folder/three.conf"):
        (folder / name).write_text("Host elsewhere\nUser somebody\n")
    await keep(config)
    (folder / changed).write_text("Host elsewhere\nUser another\nPort 1\n")
    assert find_kept(config, "first") is None


@pytest.mark.row(180)
async def test_a_key_of_the_agent_is_kept(with_agent: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_keys, "UNATTENDED_SECONDS", 60.0)
    async with kept_host(with_agent) as host:
        assert (await host.run("echo in; env")).stdout.startswith(b"in\n")
        assert b"SSH_AUTH_SOCK" not in (await host.run("env")).stdout


@pytest.mark.row(191)
async def test_a_key_for_which_the_agent_may_have_asked_is_not_kept(
    with_agent: Config, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_keys, "UNATTENDED_SECONDS", 0.0)
    async with HostPool(with_agent) as pool:
        await (await pool.host("first")).run("true")
    assert not list(runtime.glob("*/*/*"))


@pytest.mark.row(191)
async def test_a_login_that_ssh_could_not_repeat_is_not_tried_again_soon(
    config: Config, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may lock out those who fail often."""
    ssh = tmp_path / "programs" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\necho >> {tmp_path}/tries\necho 'Permission denied' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")

    def has_failed() -> bool:
        return any(path.read_text() == "Permission denied\n" for path in runtime.glob("*/*/starting"))

    for _ in range(3):
        async with HostPool(config) as pool:
            assert (await (await pool.host("first")).run("echo in")).stdout == b"in\n"
        assert await until(has_failed)
    assert (tmp_path / "tries").read_text() == "\n"
    monkeypatch.setattr(kept_start, "PAUSE_SECONDS", 0)
    async with HostPool(config) as pool:
        await pool.host("first")
    assert await until(lambda: (tmp_path / "tries").read_text() == "\n\n")


@pytest.mark.row(180)
async def test_a_way_over_a_jump_host_is_kept(make_server: MakeServer, tmp_path: Path) -> None:
    jump, server = make_server("jump"), make_server("first")
    (Path.home() / ".ssh").mkdir()
    (Path.home() / ".ssh" / "config").write_text(
        f"Host door\nHostName 127.0.0.1\nPort {jump.port}\nIdentityFile {jump.key}\nHost 127.0.0.1\nProxyJump door\n"
    )
    config = make_configuration([server], tmp_path / "project")
    async with kept_host(config) as host:
        assert (await host.run("echo $REMOTE_TOOL_TEST_SERVER")).stdout == b"first\n"
    assert jump.log().count("Accepted publickey") == 2


@pytest.mark.row(184)
async def test_a_master_has_nothing_but_the_login(config: Config, runtime: Path) -> None:
    """No secret in its arguments, nothing of our environment, nothing of the user's files."""
    os.environ["CANARY"] = "canary4711"
    try:
        _, record = await keep(config)
    finally:
        del os.environ["CANARY"]
    pid = await pid_of_master(record.socket, 20)
    assert pid is not None
    environment = read_of(pid, "environ").split(b"\0")
    assert {line.partition(b"=")[0] for line in environment if line} == {b"PATH", b"HOME", b"LC_ALL"}
    assert [path.stat().st_mode & 0o077 for path in runtime.glob("**/*")] == [0] * len(list(runtime.glob("**/*")))


@pytest.mark.row(184)
@pytest.mark.slow
async def test_a_master_ends_when_nobody_uses_it(config: Config) -> None:
    # Long enough to be seen on a busy machine.
    config = replace(config, keep_connections=5)
    async with HostPool(config) as pool:
        await pool.host("first")
    record = await kept(config)
    assert await until(lambda: not record.socket.exists())
    assert find_kept(config, "first") is None


@pytest.mark.row(184)
async def test_kept_logins_are_listed_and_ended(config: Config, tmp_path: Path) -> None:
    place, record = await keep(config)
    assert kept_logins(config.local.root, ["first"]) == [(place, record)]
    assert kept_logins(config.local.root, ["second"]) == []
    assert kept_logins(tmp_path / "other", ["first"]) == []
    assert await end_kept(place, record)
    assert await until(lambda: not record.socket.exists())
    assert kept_logins(config.local.root, ["first"]) == []


@pytest.mark.row(184)
async def test_a_stopped_master_is_ended_too(config: Config) -> None:
    place, record = await keep(config)
    pid = await pid_of_master(record.socket, 20)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert await end_kept(place, record)
        assert await until(lambda: not is_running(pid))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# The watch, and what speaks at a socket


@pytest.mark.slow
async def test_a_quiet_server_is_not_reported_and_a_silent_one_is(config: Config, server: TestServer) -> None:
    heard: list[bool] = []
    async with kept_host(config) as host, host.open("sleep 60"):
        watching = asyncio.create_task(host.watch(5.0, heard.append))
        with stopped(server):
            assert await until(lambda: heard == [False])
        assert await until(lambda: heard == [False, True])
        watching.cancel()


@pytest.mark.parametrize("said", [b"", b"\0\0\0\4\0\0\0\1", b"\xff" * 8, b"hello\n", b"\0\0\0\10\0\0\0\1\0\0\0\3"])
@pytest.mark.row(181)
async def test_what_is_no_master_gives_no_session(runtime: Path, said: bytes) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_unix_server(answer, runtime / "socket"):
        with MasterClient(runtime / "socket") as conversation, pytest.raises(MasterError):
            await conversation.connect()
        assert await pid_of_master(runtime / "socket", 20) is None
