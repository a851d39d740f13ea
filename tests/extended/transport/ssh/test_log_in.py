"""Logging in: keys, passwords, questions, and a distinct message for each way to fail."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.config.model import Config
from remote_tool.config.servers import Server
from remote_tool.errors import ConnectError, LoginError
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import log_in as ssh_log_in
from remote_tool.transport.ssh import login_errors
from tests.extended.configuration import make_configuration
from tests.extended.transport.password_server import PasswordServer, password_server, trust
from tests.sshd import free_port, make_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from remote_tool.errors import RemoteToolError
    from remote_tool.transport.host import Host
    from tests.conftest import MakeServer
    from tests.extended.transport.conftest import LogIn, Told
    from tests.sshd import TestServer

SECRET = "open sesame"


def configured(server: Server, root: Path) -> Config:
    local, remote = LocalPaths(root), RemotePaths("project")
    return Config(name="project", servers={server.name: server}, local=local, remote=remote)


async def reach(server: Server, root: Path, ask: Callable[[str], str | None] | None = None) -> bytes:
    async with HostPool(configured(server, root), ask_password=ask, confirm=trust) as pool:
        host = await pool.host(server.name)
        return (await host.run("echo in")).stdout


async def refusal(server: Server, root: Path, ask: Callable[[str], str | None] | None = None) -> RemoteToolError:
    with pytest.raises(ConnectError) as caught:
        await reach(server, root, ask)
    assert caught.value.server == "first"
    assert SECRET not in str(caught.value) + caught.value.hint + repr(caught.value)
    return caught.value


class Answers:
    """Somebody at the terminal."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str | None:
        self.prompts.append(prompt)
        return self.answers.pop(0) if self.answers else None


# Passwords (row 62)


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
async def test_a_configured_password_logs_in(method: str, tmp_path: Path) -> None:
    async with password_server(PasswordServer(methods=[method])) as door:
        assert await reach(door.server(password=SECRET), tmp_path) == b"in\n"
    assert door.attempts == [SECRET]


async def test_a_password_may_come_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", SECRET)
    async with password_server(PasswordServer()) as door:
        assert await reach(door.server(password_env="MY_PASSWORD"), tmp_path) == b"in\n"


@pytest.mark.row(47, 49)
async def test_a_wrong_password_is_tried_once(tmp_path: Path) -> None:
    """Not again by another method, and not by a second use of the pool."""
    async with (
        password_server(PasswordServer(methods=["keyboard-interactive", "password"])) as door,
        HostPool(configured(door.server(password="wrong one"), tmp_path), confirm=trust) as pool,
    ):
        for _ in range(2):
            with pytest.raises(LoginError) as caught:
                await pool.host("first")
    assert door.attempts == ["wrong one"]
    assert str(caught.value).startswith(f"Cannot log in to first (127.0.0.1:{door.port}) as someone; it accepts")
    assert "it refused the password" in str(caught.value)
    assert "wrong one" not in str(caught.value)


@pytest.mark.row(62)
@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
async def test_a_password_is_asked_for_on_a_terminal(method: str, tmp_path: Path) -> None:
    user = Answers("mistyped", SECRET)
    async with password_server(PasswordServer(methods=[method])) as door:
        assert await reach(door.server(), tmp_path, user) == b"in\n"
    assert len(user.prompts) == 2
    assert "first" in user.prompts[0]


async def test_a_user_who_gives_up_is_not_asked_again(tmp_path: Path) -> None:
    user = Answers(None)
    async with password_server(PasswordServer()) as door:
        await refusal(door.server(), tmp_path, user)
    assert len(user.prompts) == 1


@pytest.mark.row(62)
async def test_nobody_is_asked_without_a_terminal(tmp_path: Path) -> None:
    async with password_server(PasswordServer(methods=["password", "publickey"])) as door:
        began = time.monotonic()
        error = await refusal(door.server(), tmp_path)
        # Who waits for an answer waits until the login's time is over, 30 s.
        assert time.monotonic() - began < 20
        missing = await refusal(door.server(password_env="NOT_SET"), tmp_path)
    assert "there is no terminal to ask for a password" in str(error)
    assert "the password variable NOT_SET is not set" in str(missing)
    assert door.attempts == []


@pytest.mark.row(62, 110)
async def test_a_second_factor_is_asked_with_the_servers_own_words(tmp_path: Path) -> None:
    """What steers a terminal is taken out of them."""
    user = Answers("123456")
    door = PasswordServer("123456", ["keyboard-interactive"], "Verification code\x1b]0;x\x07: ")
    async with password_server(door):
        assert await reach(door.server(password="not this"), tmp_path, user) == b"in\n"
    assert user.prompts == ["first: Verification code ]0;x : "]


@pytest.mark.slow
async def test_the_time_to_type_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Enough for the rest of a login, also on a busy machine.
    monkeypatch.setattr(login_errors, "LOGIN_SECONDS", 8.0)

    def slow(prompt: str) -> str:
        del prompt
        time.sleep(9)
        return SECRET

    async with password_server(PasswordServer()) as door:
        assert await reach(door.server(), tmp_path, slow) == b"in\n"


@pytest.mark.row(61)
async def test_a_question_does_not_hold_up_ctrl_c(tmp_path: Path) -> None:
    """The thread that waits for the terminal is left behind."""
    asked, answered = threading.Event(), threading.Event()

    def never(prompt: str) -> str:
        del prompt
        asked.set()
        answered.wait(100)
        return ""

    try:
        async with password_server(PasswordServer()) as door:
            login = asyncio.create_task(reach(door.server(), tmp_path, never))
            assert await asyncio.to_thread(asked.wait, 30)
            login.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(30):
                    await login
    finally:
        answered.set()


async def test_questions_of_several_servers_come_one_after_the_other(tmp_path: Path) -> None:
    busy = False

    def ask(prompt: str) -> str:
        nonlocal busy
        del prompt
        assert not busy
        busy = True
        time.sleep(0.05)
        busy = False
        return SECRET

    async with password_server(PasswordServer()) as door:
        servers = {str(number): replace(door.server(), name=str(number)) for number in range(4)}
        config = replace(configured(door.server(), tmp_path), servers=servers)
        async with HostPool(config, ask_password=ask, confirm=trust) as pool:
            await asyncio.gather(*(pool.host(name) for name in servers))


@pytest.mark.row(111)
async def test_a_password_is_in_no_text(tmp_path: Path) -> None:
    """Not in what shows a server, a connection or a host."""
    told: list[str] = []
    async with password_server(PasswordServer()) as door:
        config = configured(door.server(password=SECRET), tmp_path)
        async with HostPool(config, trace=lambda *texts: told.append(str(texts)), confirm=trust) as pool:
            host = await pool.host("first")
            await host.run("true")
            shown = repr([config, host, vars(host), host._connection._endpoint, told])  # type: ignore[attr-defined]
    assert SECRET not in shown


# Keys (rows 48 and 49)


@pytest.mark.row(48)
async def test_only_the_configured_key_is_offered(
    server: TestServer, tmp_path: Path, own_home: Path, log_in: LogIn
) -> None:
    """Nine keys of an agent would be nine failures, and the server allows six."""
    with agent_with(*(make_key(tmp_path / f"other{number}") for number in range(9))):
        (own_home / ".ssh").mkdir()
        make_key(own_home / ".ssh" / "id_ed25519")
        async with log_in(server) as host:
            assert (await host.run("echo in")).stdout == b"in\n"
    assert "Failed publickey" not in server.log()


@pytest.mark.row(48)
async def test_too_many_agent_keys_are_named(
    server: TestServer, tmp_path: Path, config_of: Callable[..., Config]
) -> None:
    wrong = config_of(server, private_key=None).servers["first"]
    with agent_with(*(make_key(tmp_path / f"other{number}") for number in range(9))):
        error = await refusal(wrong, tmp_path / "root")
    assert isinstance(error, LoginError)
    assert "too many authentication failures" in str(error)
    assert "private_key:" in error.hint


@pytest.mark.parametrize("where", ["agent", "default", "identity file"])
async def test_without_a_configured_key_the_usual_ones_are_used(
    server: TestServer, own_home: Path, log_in: LogIn, where: str
) -> None:
    folder = own_home / ".ssh"
    folder.mkdir()
    if where == "agent":
        with agent_with(server.key):
            async with log_in(server, private_key=None) as host:
                assert (await host.run("echo in")).stdout == b"in\n"
        return
    target = folder / ("id_ed25519" if where == "default" else "my key")
    target.write_bytes(server.key.read_bytes())
    target.chmod(0o600)
    (folder / "config").write_text('Host *\nIdentityFile ~/.ssh/missing\nIdentityFile "~/.ssh/my key"\n')
    if where == "default":
        (folder / "config").unlink()
    async with log_in(server, private_key=None) as host:
        assert (await host.run("echo in")).stdout == b"in\n"


@pytest.mark.row(49)
async def test_a_refused_key_names_user_methods_and_key(server: TestServer, tmp_path: Path, config_of: Any) -> None:
    key = make_key(tmp_path / "wrong")
    error = await refusal(config_of(server, private_key=key).servers["first"], tmp_path / "root")
    assert isinstance(error, LoginError)
    assert str(error) == (
        f"Cannot log in to first (127.0.0.1:{server.port}) as {server.username}; it accepts publickey; "
        f"it refused the key {key}"
    )
    assert f"ssh -p {server.port} {server.username}@127.0.0.1" in error.hint
    assert server.log().count("Connection from") == 1


@pytest.mark.row(49)
async def test_an_unknown_user_is_refused_alike(server: TestServer, tmp_path: Path, config_of: Any) -> None:
    error = await refusal(config_of(server, username="no-such-user").servers["first"], tmp_path / "root")
    assert "as no-such-user" in str(error)


@pytest.mark.row(49)
async def test_a_missing_key_is_named(server: TestServer, tmp_path: Path, config_of: Any) -> None:
    error = await refusal(config_of(server, private_key=tmp_path / "none").servers["first"], tmp_path / "root")
    assert str(error) == f"first: the private key {tmp_path}/none does not exist"


@pytest.mark.row(49)
async def test_a_file_that_is_not_a_key_is_named(server: TestServer, tmp_path: Path, config_of: Any) -> None:
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "text").chmod(0o600)
    error = await refusal(config_of(server, private_key=tmp_path / "text").servers["first"], tmp_path / "root")
    assert f"first: {tmp_path}/text is not a private key" in str(error)


@pytest.mark.row(49)
async def test_a_configured_key_that_others_can_read_is_taken_from_them_first(
    server: TestServer, tmp_path: Path, log_in: LogIn, told: Told
) -> None:
    """As labml_remote has it: ssh uses no such key. It is said once."""
    key = tmp_path / "key"
    key.write_bytes(server.key.read_bytes())
    key.chmod(0o644)
    for _ in range(2):
        async with log_in(server, private_key=key) as host:
            assert (await host.run("echo in")).stdout == b"in\n"
    assert key.stat().st_mode & 0o777 == 0o600
    said = [text for _, text in told.notices if "chmod" in text]
    assert said == [f"chmod 600 {key}: other users could read the private key"]


@pytest.mark.row(49)
async def test_a_usual_key_that_others_can_read_is_not_used_and_stays(
    server: TestServer, tmp_path: Path, config_of: Any, own_home: Path
) -> None:
    """As ssh has it: it is no file of the project."""
    (own_home / ".ssh").mkdir()
    key = own_home / ".ssh" / "id_ed25519"
    key.write_bytes(server.key.read_bytes())
    key.chmod(0o644)
    error = await refusal(config_of(server, private_key=None).servers["first"], tmp_path / "root")
    assert "is accessible to other users (mode 0644)" in str(error)
    assert key.stat().st_mode & 0o777 == 0o644


@pytest.fixture
def locked(server: TestServer, tmp_path: Path) -> Path:
    """A key with a passphrase that the server takes."""
    key = make_key(tmp_path / "locked", passphrase=SECRET)
    with (server.folder / "authorized_keys").open("a") as file:
        file.write((tmp_path / "locked.pub").read_text())
    return key


async def test_a_passphrase_is_asked_for(server: TestServer, locked: Path, log_in: LogIn) -> None:
    user = Answers("wrong", SECRET)
    async with log_in(server, private_key=locked, ask=user) as host:
        assert (await host.run("echo in")).stdout == b"in\n"
    assert user.prompts == [f"Passphrase of {locked}: "] * 2


async def test_the_agent_may_hold_the_configured_key(
    server: TestServer, locked: Path, log_in: LogIn, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    opened.write_bytes(locked.read_bytes())
    opened.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", SECRET, "-N", "", "-f", str(opened)], check=True)
    with agent_with(make_key(tmp_path / "other"), opened):
        async with log_in(server, private_key=locked) as host:
            assert (await host.run("echo in")).stdout == b"in\n"
    assert "Failed publickey" not in server.log()


@pytest.mark.row(49)
async def test_a_passphrase_without_a_terminal_is_an_error(
    server: TestServer, locked: Path, tmp_path: Path, config_of: Any
) -> None:
    error = await refusal(config_of(server, private_key=locked).servers["first"], tmp_path / "root")
    assert isinstance(error, LoginError)
    assert "has a passphrase, and there is no terminal to ask for it" in str(error)
    assert error.hint == f"ssh-add {locked}"


async def test_a_locked_default_key_is_opened_when_no_other_fits(
    server: TestServer, locked: Path, own_home: Path, log_in: LogIn
) -> None:
    (own_home / ".ssh").mkdir()
    locked.rename(own_home / ".ssh" / "id_ed25519")
    user = Answers(SECRET)
    async with log_in(server, private_key=None, ask=user) as host:
        assert (await host.run("echo in")).stdout == b"in\n"
    assert len(user.prompts) == 1


@pytest.mark.row(49)
async def test_a_dead_agent_is_told_when_it_would_have_helped(
    server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config_of: Any
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    error = await refusal(config_of(server, private_key=None).servers["first"], tmp_path / "root")
    assert f"the ssh agent at {tmp_path}/gone does not answer" in str(error)


@contextmanager
def agent_with(*keys: Path) -> Iterator[None]:
    """Run an agent that holds some keys."""
    folder = keys[0].parent
    address = folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(address)], stdout=subprocess.DEVNULL)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as probe:
            while probe.connect_ex(str(address)):
                time.sleep(0.01)
        os.environ["SSH_AUTH_SOCK"] = str(address)
        subprocess.run(["ssh-add", "-q", *map(str, keys)], check=True)
        yield
    finally:
        os.environ.pop("SSH_AUTH_SOCK", None)
        agent.terminate()
        agent.wait()


# No way there


def plain(port: int, hostname: str = "127.0.0.1") -> Server:
    return Server(name="first", hostname=hostname, port=port, username="someone")


async def test_an_unknown_host_name_is_named(tmp_path: Path) -> None:
    error = await refusal(plain(22, "no-such-host.invalid"), tmp_path)
    assert "first: unknown host name 'no-such-host.invalid'" in str(error)
    assert "hostname:" in error.hint


@pytest.mark.parametrize("hostname", ["127.0.0.1", "localhost"])
async def test_a_closed_port_is_named(hostname: str, tmp_path: Path) -> None:
    """Also where the name has several addresses."""
    port = free_port()
    error = await refusal(plain(port, hostname), tmp_path)
    assert str(error) == f"first: {hostname}:{port} refused the connection"
    assert "sshd" in error.hint


@pytest.mark.row(43)
async def test_no_answer_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog answers nothing, as a firewall that drops."""
    monkeypatch.setattr(login_errors, "CONNECT_SECONDS", 0.3)
    with full_backlog() as port:
        error = await refusal(plain(port), tmp_path)
    assert str(error) == f"first: 127.0.0.1:{port} did not answer within 0.3 s"
    assert "firewall" in error.hint


@contextmanager
def full_backlog() -> Iterator[int]:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)
        time.sleep(0.05)
        yield address[1]
        for client in waiting:
            client.close()


@asynccontextmanager
async def fake_server(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[int]:
    """Take connections without being an SSH server."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.row(44)
async def test_a_server_that_never_speaks_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_errors, "LOGIN_SECONDS", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await reader.read()

    async with fake_server(silent) as port:
        error = await refusal(plain(port), tmp_path)
    assert f"127.0.0.1:{port} accepted the connection, but the login did not finish within 0.3 s" in str(error)


@pytest.mark.row(44)
@pytest.mark.parametrize("line", [b"x" * 200 + b"\r\n", b"x" * 65536], ids=["many lines", "one long line"])
async def test_an_endless_banner_is_given_up(tmp_path: Path, line: bytes) -> None:
    """Within bounds of time and memory."""
    sent = 0

    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        del reader
        while sent < 100_000_000:
            writer.write(line * 10)
            sent += len(line) * 10
            await writer.drain()

    async with fake_server(talkative) as port:
        began = time.monotonic()
        error = await refusal(plain(port), tmp_path)
    assert "No SSH connection to first" in str(error)
    assert sent < 50_000_000
    # Without a bound of its own, until the login's time is over.
    assert time.monotonic() - began < 20


@pytest.mark.row(44)
async def test_a_web_server_is_reported_as_not_an_ssh_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_log_in, "PAUSES", (0.1,))

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with fake_server(web) as port:
        error = await refusal(plain(port), tmp_path)
    assert f"first: 127.0.0.1:{port} closed the connection before the login" in str(error)
    assert type(error) is ConnectError


# A busy server


@pytest.mark.row(45)
@pytest.mark.slow
async def test_sixty_logins_at_one_server_all_succeed(make_server: MakeServer, tmp_path: Path) -> None:
    """A stock sshd drops some of more than ten at once."""
    server = make_server(MaxStartups="10:30:100")
    one = make_configuration([server], tmp_path / "root")
    config = replace(
        one, servers={f"gpu{number}": replace(one.servers["first"], name=f"gpu{number}") for number in range(60)}
    )
    async with HostPool(config) as pool:
        hosts: list[Host] = await asyncio.gather(*(pool.host(name) for name in config.servers))
        answers = await asyncio.gather(*(host.run("echo in") for host in hosts))
    assert [answer.stdout for answer in answers] == [b"in\n"] * 60


@pytest.mark.row(45)
@pytest.mark.parametrize("aliases", [False, True], ids=["one name", "many names"])
async def test_no_more_than_eight_log_in_at_one_server_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aliases: bool
) -> None:
    """A stock sshd begins to drop at ten, whatever the names in ssh_config that lead there."""
    monkeypatch.setattr(login_errors, "LOGIN_SECONDS", 0.2)
    present = most = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal present, most
        del writer
        present += 1
        most = max(most, present)
        await reader.read()
        present -= 1

    async with fake_server(silent) as port:
        servers = {str(number): replace(plain(port), name=str(number)) for number in range(20)}
        if aliases:
            (Path.home() / ".ssh").mkdir(exist_ok=True)
            (Path.home() / ".ssh" / "config").write_text("Host alias*\nHostName 127.0.0.1\n")
            servers = {name: replace(server, hostname=f"alias{name}") for name, server in servers.items()}
        config = replace(configured(plain(port), tmp_path), servers=servers)
        async with HostPool(config) as pool:
            answers = await asyncio.gather(*(pool.host(name) for name in servers), return_exceptions=True)
    assert {type(answer) for answer in answers} == {ConnectError}
    assert most == 8


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Be the server at another port."""

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
    finally:
        inner_writer.transport.abort()


@pytest.mark.row(45)
async def test_a_dropped_login_is_tried_again(tmp_path: Path, server: TestServer, told: Told) -> None:
    """A busy server hangs up before it says anything."""
    drops = 2

    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal drops
        if drops:
            drops -= 1
            return
        await pass_on(reader, writer, server.port)

    async with fake_server(busy) as port:
        config = make_configuration([server], tmp_path / "root")
        config = replace(config, servers={"first": replace(config.servers["first"], port=port)})
        async with HostPool(config, report=told.notice) as pool:
            assert (await (await pool.host("first")).run("echo in")).stdout == b"in\n"
    assert drops == 0


@pytest.mark.row(47)
async def test_a_login_that_is_cut_off_later_is_not_tried_again(tmp_path: Path) -> None:
    """The server may have counted a failure."""
    async with password_server(PasswordServer(hangs_up=True)) as door:
        error = await refusal(door.server(password=SECRET), tmp_path)
    assert f"first: 127.0.0.1:{door.port} closed the connection during the login as someone" in str(error)
    assert door.connections == 1


@pytest.mark.row(47)
async def test_a_server_that_refuses_us_for_a_while_is_waited_for_and_it_is_said_why(
    tmp_path: Path, server: TestServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sshd 9.8 and newer do after failed logins; none was at hand, so this one hangs up as its source does.

    It says one line and closes, before its version; here the pauses are short.
    """
    monkeypatch.setattr(ssh_log_in, "PAUSES", (0.01, 0.02, 0.04))
    monkeypatch.setattr(ssh_log_in, "REPORTED_PAUSE", 0.03)
    connections: list[bytes] = []

    async def penalising(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) == 3:
            await pass_on(reader, writer, server.port)
            return
        writer.write(b"Not allowed at this time\r\n")
        connections.append(await reader.readline())

    async with fake_server(penalising) as port:
        config = make_configuration([server], tmp_path / "root")
        config = replace(config, servers={"first": replace(config.servers["first"], port=port)})
        async with HostPool(config, report=told.notice) as pool:
            assert (await (await pool.host("first")).run("echo in")).stdout == b"in\n"
    assert all(line.startswith(b"SSH-2.0-") for line in connections), "no connection that asks for nothing"
    tellings = [text for _, text in told.notices if "closed the connection before the login" in text]
    assert len(tellings) == 1, "a short pause is nothing to tell"
    assert "reject this machine for a while after failed logins" in tellings[0]
    assert tellings[0].endswith("trying again")


@pytest.mark.row(47)
async def test_a_server_that_keeps_refusing_is_given_up_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_log_in, "PAUSES", (0.01,) * len(ssh_log_in.PAUSES))
    connections = 0

    async def penalising(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        del reader, writer
        connections += 1

    async with fake_server(penalising) as port:
        error = await refusal(plain(port), tmp_path)
    assert connections == len(ssh_log_in.PAUSES) + 1
    assert "or reject this machine for a while after failed logins" in error.hint


@pytest.mark.row(47)
def test_the_pauses_are_longer_than_a_first_penalty_and_not_endless() -> None:
    """A refused login costs 5 s there, and the refusals begin at 15 s (sshd_config(5), PerSourcePenalties)."""
    assert sum(ssh_log_in.PAUSES) * ssh_log_in.JITTER[0] > 15
    assert sum(ssh_log_in.PAUSES) * ssh_log_in.JITTER[1] < 60


@pytest.mark.row(47)
async def test_every_connection_to_a_server_logs_in(server: TestServer, log_in: LogIn) -> None:
    """One that only looks whether the port is open would be counted against us."""
    async with log_in(server) as host:
        await host.run("true")
    log = server.log()
    assert (log.count("Connection from"), log.count("Accepted publickey")) == (1, 1)
