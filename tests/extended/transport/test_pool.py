"""All connections of one command: shared, made again when lost, and closed within a bound."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import asyncssh
import pytest

from remote_tool.config.servers import Server
from remote_tool.errors import (
    ConnectError,
    ConnectionLostError,
    RemoteToolError,
    SomeServersFailedError,
    UsageError,
)
from remote_tool.transport.pool import HostPool, Results, on_every
from remote_tool.transport.ssh import log_in as ssh_log_in
from remote_tool.transport.ssh import ssh_config
from remote_tool.transport.ssh.login_errors import LoginProgress, Stage, explained
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.transport.ssh.host import SshHost
    from tests.conftest import MakeServer
    from tests.sshd import TestServer


@pytest.fixture
def config(server: TestServer, tmp_path: Path) -> Config:
    return make_configuration([server], tmp_path / "project")


async def test_all_callers_share_one_connection(config: Config, server: TestServer) -> None:
    async with HostPool(config) as pool:
        hosts = await asyncio.gather(*(pool.host("first") for _ in range(5)))
        assert len({id(host) for host in hosts}) == 1
    assert server.log().count("Accepted publickey") == 1


async def test_an_unknown_server_is_a_wrong_request(config: Config) -> None:
    async with HostPool(config) as pool:
        with pytest.raises(UsageError, match="Unknown server 'secnd'") as caught:
            await pool.host("secnd")
    assert caught.value.hint == "The servers are: first"


@pytest.mark.row(60)
async def test_a_lost_connection_is_made_again_at_the_next_use(config: Config, server: TestServer) -> None:
    """For a new use, never for a command that may have run."""
    async with HostPool(config) as pool:
        host = await pool.host("first")
        async with host.open("sleep 60") as channel:
            server.drop_connections()
            with pytest.raises(ConnectionLostError):
                await channel.read()
        again = await pool.host("first")
        assert again is not host
        assert (await again.run("echo in")).stdout == b"in\n"


@pytest.mark.row(60)
@pytest.mark.slow
async def test_a_connection_that_the_server_closed_for_its_idleness_is_made_again(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(UnusedConnectionTimeout="4s")
    async with HostPool(make_configuration([server], tmp_path)) as pool:
        host = await pool.host("first")
        assert (await host.run("echo one")).stdout == b"one\n"
        async with asyncio.timeout(300):
            while cast("SshHost", host).alive:  # noqa: ASYNC110 - sshd looks once in a while
                await asyncio.sleep(0.05)
        assert (await (await pool.host("first")).run("echo two")).stdout == b"two\n"
    assert "terminating inactive connection" in server.log()


@pytest.mark.row(60)
@pytest.mark.slow
async def test_a_command_that_the_server_closed_for_its_silence_is_an_error_and_not_started_again(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """It may have done its work, so only whoever asked for it can tell."""
    server = make_server(ChannelTimeout="session:command=1s")
    async with HostPool(make_configuration([server], tmp_path)) as pool:
        host = await pool.host("first")
        with pytest.raises(RemoteToolError):
            await host.run('echo started >> "$HOME/starts"; sleep 50')
    # On a busy server it may not even have begun.
    starts = server.home / "starts"
    assert (starts.read_text() if starts.exists() else "") in {"", "started\n"}


async def test_a_server_that_was_off_may_be_tried_again(config: Config, server: TestServer) -> None:
    server.stop()
    async with HostPool(config) as pool:
        for _ in range(2):
            answers = await asyncio.gather(*(pool.host("first") for _ in range(3)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [ConnectError] * 3
        server.start()
        await pool.host("first")


async def test_one_caller_that_gives_up_does_not_end_the_others(config: Config) -> None:
    async with HostPool(config) as pool:
        impatient = asyncio.create_task(pool.host("first"))
        patient = asyncio.create_task(pool.host("first"))
        await asyncio.sleep(0.005)
        impatient.cancel()
        assert (await (await patient).run("echo in")).stdout == b"in\n"
        with pytest.raises(asyncio.CancelledError):
            await impatient


@pytest.mark.row(61)
async def test_closing_ends_logins_that_are_under_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and nothing is left of them."""
    monkeypatch.setattr(ssh_log_in, "PAUSES", ())
    came, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        gone.set()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    config = make_configuration([], tmp_path)
    port = listener.sockets[0].getsockname()[1]
    config = replace(config, servers={"first": Server("first", "127.0.0.1", username="me", port=port)})
    before = asyncio.all_tasks()
    async with HostPool(config) as pool:
        waiting = asyncio.create_task(pool.host("first"))
        await asyncio.wait_for(came.wait(), 30)
        began = time.monotonic()
        waiting.cancel()
    # Not left alone, a login ends after CONNECT_SECONDS, 15 s.
    assert time.monotonic() - began < 10
    await asyncio.wait_for(gone.wait(), 30)
    listener.close()
    await listener.wait_closed()
    del waiting
    gc.collect()
    assert asyncio.all_tasks() <= before
    assert "never retrieved" not in caplog.text


PROGRAM = """
import asyncio, sys
from pathlib import Path
from remote_tool.config.model import Config
from remote_tool.config.servers import Server
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.transport.pool import HostPool

async def main():
    asyncio.get_running_loop().slow_callback_duration = 100  # a busy machine is slow, of which asyncio would tell
    server = Server("first", "127.0.0.1", sys.argv[1], int(sys.argv[2]), private_key=Path(sys.argv[3]))
    local, remote = LocalPaths(Path(sys.argv[4])), RemotePaths("project")
    config = Config(name="project", servers={"first": server}, local=local, remote=remote)
    async with HostPool(config) as pool:
        host = await pool.host("first")
        print("ready", flush=True)
        await asyncio.gather(*(host.run("sleep 5") for _ in range(20)))

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.row(61)
@pytest.mark.slow
def test_ctrl_c_leaves_at_once(server: TestServer, tmp_path: Path) -> None:
    """Without a word of asyncio, and long before the connection would end by itself."""
    arguments = [server.username, str(server.port), str(server.key), str(tmp_path)]
    program = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    time.sleep(0.2)
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=300)
    assert time.monotonic() - began < 20
    assert program.returncode == 130
    assert err == b""


# Several servers at once


async def test_one_failing_server_stops_no_other(two_servers: tuple[TestServer, TestServer], tmp_path: Path) -> None:
    config = make_configuration(two_servers, tmp_path / "project")
    two_servers[0].stop()
    async with HostPool(config) as pool:

        async def greet(name: str) -> bytes:
            return (await (await pool.host(name)).run("echo $REMOTE_TOOL_TEST_SERVER")).stdout

        results = await on_every(config.servers, greet)
    assert results.values == {"second": b"second\n"}
    assert list(results.errors) == ["first"]
    with pytest.raises(SomeServersFailedError, match="1 of 2 servers failed: first") as caught:
        results.raise_if_any_failed()
    assert caught.value.exit_code == 3


async def test_all_work_is_done_at_once_and_answers_keep_their_order() -> None:
    meeting = asyncio.Barrier(3)

    async def meet(name: str) -> str:
        await meeting.wait()
        await asyncio.sleep({"a": 0.02, "b": 0.01, "c": 0.0}[name])
        return name.upper()

    results = await asyncio.wait_for(on_every(["a", "b", "c", "a"], meet), 30)
    assert list(results.values.items()) == [("a", "A"), ("b", "B"), ("c", "C")]
    results.raise_if_any_failed()


async def test_a_bug_is_raised_as_it_is_and_stops_all() -> None:
    stopped = asyncio.Event()

    async def work(name: str) -> None:
        if name == "bug":
            raise ZeroDivisionError
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    with pytest.raises(ZeroDivisionError):
        await on_every(["fine", "bug"], work)
    assert stopped.is_set()


def test_the_error_of_the_only_server_is_raised_itself() -> None:
    error = ConnectError("first: no", server="first")
    with pytest.raises(ConnectError) as caught:
        Results[None](errors={"first": error}).raise_if_any_failed()
    assert caught.value is error


# Foreign errors


def public_exceptions() -> list[type[Exception]]:
    values = [getattr(asyncssh, name) for name in asyncssh.__all__]
    found = [value for value in values if isinstance(value, type) and issubclass(value, Exception)]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("kind", public_exceptions(), ids=lambda kind: kind.__name__)
def test_every_public_exception_of_the_library_becomes_one_of_ours(kind: type[Exception], config: Config) -> None:
    """Whatever the stage, with the server's name in it."""
    for stage in Stage:
        progress = progress_at(stage, config)
        error = kind.__new__(kind, "why it is so")
        error.args = ("why it is so",)
        if kind is asyncssh.ChannelOpenError and stage is Stage.READY:
            continue  # a refused session is no failure: it waits for its turn
        with pytest.raises(RemoteToolError) as caught, explained(progress):
            raise error
        assert "first" in str(caught.value)
        assert caught.value.server == "first"
        assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "error", [OSError(113, "No route to host"), TimeoutError(), ConnectionResetError(), BrokenPipeError()], ids=repr
)
def test_every_error_of_the_system_becomes_one_of_ours(error: Exception, config: Config) -> None:
    for stage in Stage:
        with pytest.raises(ConnectError, match="first") as caught, explained(progress_at(stage, config)):
            raise error
        assert caught.value.hint


def test_a_bug_of_ours_crosses_as_it_is(config: Config) -> None:
    with pytest.raises(KeyError), explained(progress_at(Stage.READY, config)):
        raise KeyError


def progress_at(stage: Stage, config: Config) -> LoginProgress:
    *_, endpoint = ssh_config.resolve_endpoints(config.servers["first"])
    return LoginProgress(endpoint, can_ask=False, stage=stage)


def test_nothing_else_imports_the_ssh_library() -> None:
    """Reading --help must not wait for it."""
    seam: Callable[[str], str] = "import sys, remote_tool.transport.{}; print('asyncssh' in sys.modules)".format
    for module in (
        "host",
        "pool",
        "connection_cache",
        "prompter",
        "ssh.channel",
        "ssh.context",
        "ssh.endpoint",
        "ssh.host_keys.check",
        "ssh.passwords",
        "ssh.script",
        "ssh.host",
    ):
        answer = subprocess.run([sys.executable, "-c", seam(module)], capture_output=True, check=True).stdout
        assert answer == b"False\n", module


def test_a_command_that_connects_to_nobody_loads_no_ssh_library() -> None:
    """It takes a third of a short command, and a sync lists the project meanwhile."""
    program = "import sys, remote_tool.cli.app, remote_tool.workspace; sys.exit('asyncssh' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
