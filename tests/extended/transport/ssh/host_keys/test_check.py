"""The host key is checked before anything is sent, at every connection and at every jump host."""

from __future__ import annotations

import asyncio
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.config.model import HostKeyPolicy
from remote_tool.errors import ConnectError, HostKeyError
from remote_tool.transport.pool import HostPool
from tests.extended.configuration import make_configuration
from tests.extended.transport.password_server import PasswordServer, password_server
from tests.extended.transport.ssh.host_keys.test_known_hosts import key_of
from tests.sshd import make_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.config.model import Config
    from remote_tool.transport.ssh.host_keys.entries import HostKey
    from tests.conftest import MakeServer
    from tests.extended.transport.conftest import LogIn, Told
    from tests.sshd import TestServer


@pytest.fixture
def ssh_folder(own_home: Path) -> Path:
    folder = own_home / ".ssh"
    folder.mkdir()
    return folder


@pytest.fixture
def project_file(tmp_path: Path) -> Path:
    """The known_hosts file of the project that ``log_in`` uses."""
    return tmp_path / "project" / ".remote" / "known_hosts"


@pytest.fixture
def other_key(tmp_path: Path) -> HostKey:
    return key_of(make_key(tmp_path / "other_key"))


def name_of(server: TestServer) -> str:
    return f"[127.0.0.1]:{server.port}"


async def refused(log_in: LogIn, server: TestServer, **changes: Any) -> HostKeyError:
    with pytest.raises(HostKeyError) as caught:
        async with log_in(server, **changes):
            pass
    assert "Accepted" not in server.log()
    assert "Postponed" not in server.log()
    return caught.value


@pytest.mark.row(39)
async def test_a_new_host_is_accepted_and_recorded_once(
    server: TestServer, log_in: LogIn, told: Told, project_file: Path
) -> None:
    key = key_of(server.host_key)
    for _ in range(2):
        async with log_in(server) as host:
            await host.run("true")
    assert project_file.read_text() == f"{name_of(server)} {key.text} remote-tool:{server.name}:127.0.0.1\n"
    assert project_file.stat().st_mode & 0o777 == 0o600
    assert told.notices == [("first", f"new host key of 127.0.0.1:{server.port} accepted: {key.fingerprint}")]


@pytest.mark.row(39)
async def test_twenty_first_contacts_write_one_line(server: TestServer, tmp_path: Path) -> None:
    """Of twenty pools at once, as of twenty commands."""
    config = make_configuration([server], tmp_path)

    async def contact() -> None:
        async with HostPool(config) as pool:
            await pool.host("first")

    await asyncio.gather(*(contact() for _ in range(20)))
    assert config.local.known_hosts.read_text().count("\n") == 1


@pytest.mark.row(38, 39, 116)
@pytest.mark.parametrize("where", ["project", "user", "hashed", "another type"])
async def test_a_changed_key_is_refused(
    where: str, server: TestServer, log_in: LogIn, ssh_folder: Path, project_file: Path, other_key: HostKey
) -> None:
    """With both fingerprints, the line, and what to type; not even a login is begun."""
    file = project_file if where == "project" else ssh_folder / "known_hosts"
    file.parent.mkdir(parents=True, exist_ok=True)
    if where == "another type":
        path = file.with_name("ecdsa")
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(path)], check=True)
        other_key = key_of(path)
    file.write_text(f"# mine\n{name_of(server)} {other_key.text}\n")
    if where == "hashed":
        subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, capture_output=True)
    before = file.read_bytes()

    error = await refused(log_in, server)

    new = key_of(server.host_key)
    assert f"expected {other_key.kind} {other_key.fingerprint} ({file}:" in str(error)
    assert f"got {new.kind} {new.fingerprint}" in str(error)
    assert error.hint == f"If the server was reinstalled: ssh-keygen -R '{name_of(server)}' -f {file}"
    assert file.read_bytes() == before


@pytest.mark.row(38)
async def test_the_hint_of_a_changed_key_helps(
    server: TestServer, log_in: LogIn, ssh_folder: Path, other_key: HostKey
) -> None:
    (ssh_folder / "known_hosts").write_text(f"{name_of(server)} {other_key.text}\n")
    hint = (await refused(log_in, server)).hint
    subprocess.run(["/bin/sh", "-c", hint.partition(": ")[2]], check=True, capture_output=True)
    async with log_in(server) as host:
        await host.run("true")


@pytest.mark.row(38, 116)
async def test_no_password_is_sent_to_a_host_with_another_key(tmp_path: Path, other_key: HostKey) -> None:
    config = make_configuration([], tmp_path / "root")
    async with password_server(PasswordServer()) as door:
        config = replace(config, servers={"first": door.server(password=door.password)})
        config.local.known_hosts.write_text(f"[127.0.0.1]:{door.port} {other_key.text}\n")
        async with HostPool(config) as pool:
            for _ in range(2):
                with pytest.raises(HostKeyError):
                    await pool.host("first")
    assert door.attempts == []
    assert door.connections == 1


@pytest.mark.row(39)
async def test_the_known_one_of_several_keys_is_asked_for(
    make_server: MakeServer, log_in: LogIn, ssh_folder: Path, tmp_path: Path, told: Told
) -> None:
    """A server with several keys shows the one that we know, whatever it would choose."""
    rsa = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(rsa)], check=True)
    server = make_server()
    server.stop()
    server.options["HostKey"] = f"{server.host_key}\nHostKey {rsa}"
    server.start()
    (ssh_folder / "known_hosts").write_text(f"{name_of(server)} {key_of(rsa).text}\n")
    async with log_in(server) as host:
        await host.run("true")
    assert told.notices == []


@pytest.mark.row(39, 51, 116)
@pytest.mark.parametrize("how", ["configs.yaml", "ssh_config", "ssh_config by host", "KnownHostsCommand"])
async def test_an_unknown_host_is_refused_when_the_policy_is_strict(
    how: str, server: TestServer, tmp_path: Path, ssh_folder: Path
) -> None:
    """StrictHostKeyChecking of ssh_config counts, although asyncssh leaves it out."""
    config = make_configuration([server], tmp_path / "project")
    settings = {
        "ssh_config": "StrictHostKeyChecking yes\n",
        "ssh_config by host": "Host nobody\nStrictHostKeyChecking no\nHost 127.*\nStrictHostKeyChecking yes\n",
        "KnownHostsCommand": 'KnownHostsCommand "/bin/echo" %H\n',
    }
    if how in settings:
        (ssh_folder / "config").write_text(settings[how])
    else:
        config = replace(config, host_keys=HostKeyPolicy.STRICT)
    key = key_of(server.host_key)
    async with HostPool(config) as pool:
        with pytest.raises(HostKeyError) as caught:
            await pool.host("first")
    assert f"is not known: {key.kind} {key.fingerprint}" in str(caught.value)
    assert f"ssh -p {server.port} " in caught.value.hint
    assert not config.local.known_hosts.exists()

    (ssh_folder / "known_hosts").write_text(f"{name_of(server)} {key.text}\n")
    async with HostPool(config) as pool:
        await pool.host("first")


@pytest.mark.row(51)
async def test_strictness_for_other_hosts_does_not_count(server: TestServer, log_in: LogIn, ssh_folder: Path) -> None:
    (ssh_folder / "config").write_text("Host elsewhere\nStrictHostKeyChecking yes\n")
    async with log_in(server) as host:
        await host.run("true")


@pytest.mark.row(40)
async def test_the_files_of_ssh_config_are_asked(
    server: TestServer, log_in: LogIn, ssh_folder: Path, other_key: HostKey
) -> None:
    """With UserKnownHostsFile, ~/.ssh/known_hosts is not read, as ssh has it."""
    (ssh_folder / "known_hosts").write_text(f"{name_of(server)} {key_of(server.host_key).text}\n")
    (ssh_folder / "mine").write_text(f"{name_of(server)} {other_key.text}\n")
    (ssh_folder / "config").write_text("UserKnownHostsFile ~/.ssh/none %d/.ssh/mine\n")
    assert f"{ssh_folder}/mine:1" in str(await refused(log_in, server))
    (ssh_folder / "config").write_text("GlobalKnownHostsFile ~/.ssh/mine\n")
    async with log_in(server) as host:
        await host.run("true")


@pytest.mark.row(41)
async def test_a_host_key_alias_is_looked_up_without_port(server: TestServer, log_in: LogIn, ssh_folder: Path) -> None:
    (ssh_folder / "config").write_text("HostKeyAlias Cluster\nStrictHostKeyChecking yes\n")
    (ssh_folder / "known_hosts").write_text(f"cluster {key_of(server.host_key).text}\n")
    async with log_in(server) as host:
        await host.run("true")


@pytest.mark.row(41, 51)
@pytest.mark.parametrize("how", ["marker", "file"])
async def test_a_revoked_key_is_refused(how: str, server: TestServer, log_in: LogIn, ssh_folder: Path) -> None:
    """Although another line trusts it."""
    key = key_of(server.host_key)
    lines = f"{name_of(server)} {key.text}\n"
    if how == "marker":
        lines += f"@revoked * {key.text}\n"
    else:
        (ssh_folder / "gone").write_text(f"{key.text}\n")
        (ssh_folder / "config").write_text("RevokedHostKeys ~/.ssh/gone\n")
    (ssh_folder / "known_hosts").write_text(lines)
    error = await refused(log_in, server)
    assert "is revoked" in str(error)
    assert key.fingerprint in str(error)


@pytest.mark.row(51)
async def test_unreadable_revocations_stop_everything(server: TestServer, log_in: LogIn, ssh_folder: Path) -> None:
    """Never weaker than what ssh_config asks for."""
    (ssh_folder / "config").write_text("RevokedHostKeys ~/.ssh/missing\n")
    assert "RevokedHostKeys" in str(await refused(log_in, server))


@pytest.mark.row(42)
async def test_bad_lines_are_named_and_do_no_harm(
    server: TestServer, log_in: LogIn, ssh_folder: Path, told: Told
) -> None:
    content = f"caf\xe9 {key_of(server.host_key).text}\n{name_of(server)} {key_of(server.host_key).text}\nx\n"
    (ssh_folder / "known_hosts").write_bytes(content.encode("latin-1"))
    async with log_in(server) as host:
        await host.run("true")
    assert [text.partition(": ")[0] for _, text in told.notices] == [
        f"{ssh_folder}/known_hosts:1",
        f"{ssh_folder}/known_hosts:3",
    ]


# Certificates (row 41)


@pytest.fixture
def certified(make_server: MakeServer, tmp_path: Path) -> tuple[TestServer, HostKey]:
    """A server whose key an authority has signed, for 127.0.0.1."""
    authority = make_key(tmp_path / "authority")
    server = make_server("certified")
    server.stop()
    public = server.host_key.with_name("host_key.pub")
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-h", "-I", "id", "-n", "127.0.0.1", str(public)], check=True
    )
    server.options["HostCertificate"] = str(server.host_key.with_name("host_key-cert.pub"))
    server.start()
    return server, key_of(authority)


@pytest.mark.row(41)
async def test_a_certificate_of_a_known_authority_is_enough(
    certified: tuple[TestServer, HostKey], log_in: LogIn, ssh_folder: Path
) -> None:
    server, authority = certified
    (ssh_folder / "config").write_text("StrictHostKeyChecking yes\n")
    (ssh_folder / "known_hosts").write_text(f"@cert-authority [127.0.0.1]:* {authority.text}\n")
    async with log_in(server) as host:
        await host.run("true")


@pytest.mark.row(41)
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("@cert-authority [127.0.0.1]:* OTHER", id="another authority"),
        pytest.param("@cert-authority [127.0.0.1]:* AUTHORITY\n@revoked * AUTHORITY", id="revoked authority"),
        pytest.param("@cert-authority [127.0.0.1]:* AUTHORITY\n@revoked * SERVER", id="revoked key"),
        pytest.param("[127.0.0.1]:PORT AUTHORITY", id="the authority's key as a host's"),
    ],
)
async def test_a_certificate_that_proves_nothing_is_refused(
    lines: str, certified: tuple[TestServer, HostKey], log_in: LogIn, ssh_folder: Path, other_key: HostKey
) -> None:
    server, authority = certified
    (ssh_folder / "config").write_text("StrictHostKeyChecking yes\n")
    words = {"OTHER": other_key, "AUTHORITY": authority, "SERVER": key_of(server.host_key)}
    for word, key in words.items():
        lines = lines.replace(word, key.text)
    (ssh_folder / "known_hosts").write_text(lines.replace("PORT", str(server.port)) + "\n")
    await refused(log_in, server)


@pytest.mark.row(41)
async def test_a_certificate_for_another_host_is_refused(
    certified: tuple[TestServer, HostKey], log_in: LogIn, ssh_folder: Path
) -> None:
    server, authority = certified
    (ssh_folder / "known_hosts").write_text(f"@cert-authority * {authority.text}\n")
    error = await refused(log_in, server, hostname="localhost")
    assert "not trusted" in str(error)


@pytest.mark.row(41)
async def test_a_certificate_does_not_hide_a_known_key(
    certified: tuple[TestServer, HostKey], log_in: LogIn, ssh_folder: Path
) -> None:
    """Where nobody vouches for the authority, the plain key is asked for, as ssh does."""
    server, _ = certified
    (ssh_folder / "config").write_text("StrictHostKeyChecking yes\n")
    (ssh_folder / "known_hosts").write_text(f"{name_of(server)} {key_of(server.host_key).text}\n")
    async with log_in(server) as host:
        await host.run("true")


@pytest.mark.row(41)
async def test_a_certificate_of_nobody_we_know_does_not_stop_a_first_contact(
    certified: tuple[TestServer, HostKey], log_in: LogIn, project_file: Path
) -> None:
    server, _ = certified
    async with log_in(server) as host:
        await host.run("true")
    assert key_of(server.host_key).text in project_file.read_text()


# ssh_config and jump hosts (rows 50 and 51)


@pytest.fixture
def write_config(ssh_folder: Path) -> Callable[[str], None]:
    def write(text: str) -> None:
        (ssh_folder / "config").write_text(text)

    return write


@pytest.mark.row(51)
async def test_an_alias_brings_all_that_ssh_config_says(
    server: TestServer, log_in: LogIn, ssh_folder: Path, write_config: Callable[[str], None]
) -> None:
    """User, Port, IdentityFile, Include, Match."""
    (ssh_folder / "more").mkdir()
    (ssh_folder / "more" / "gpu").write_text(f"Host gpu\nHostname 127.0.0.1\nPort {server.port}\n")
    write_config(
        f"Include more/*\nHost gpu\nUser {server.username}\nUnknownOption yes\nServerAliveInterval 3\n"
        f"Match originalhost gpu exec true\nIdentityFile {server.key}\nMatch final all\nCompression no\n"
    )
    async with log_in(server, hostname="gpu", username=None, port=None, private_key=None) as host:
        assert (await host.run("echo in")).stdout == b"in\n"


async def test_the_configuration_goes_before_ssh_config(
    server: TestServer, log_in: LogIn, write_config: Callable[[str], None]
) -> None:
    write_config("Host *\nUser nobody-at-all\nPort 1\nIdentityFile /nonexistent\nCiphers aes256-ctr\n")
    async with log_in(server) as host:
        assert (await host.run("echo in")).stdout == b"in\n"


async def test_the_user_is_ubuntu_when_nothing_says_another(
    server: TestServer, log_in: LogIn, write_config: Callable[[str], None]
) -> None:
    with pytest.raises(ConnectError, match="as ubuntu"):
        async with log_in(server, username=None):
            pass
    write_config(f"User {server.username}\n")
    async with log_in(server, username=None) as host:
        await host.run("true")


async def test_a_host_of_a_list_is_logged_in_to_as_ssh_would(
    server: TestServer, log_in: LogIn, write_config: Callable[[str], None]
) -> None:
    async with log_in(server, username=None, is_listed=True) as host:
        assert (await host.run("id -un")).stdout.decode().strip() == server.username
    write_config("User somebody-else\n")
    with pytest.raises(ConnectError, match="as somebody-else"):
        async with log_in(server, username=None, is_listed=True):
            pass


@pytest.mark.row(51)
@pytest.mark.parametrize("line", ["Port abc", 'Host "unclosed', "ProxyJump a:b:c:d"])
async def test_a_wrong_ssh_config_is_named(
    line: str, server: TestServer, log_in: LogIn, write_config: Callable[[str], None]
) -> None:
    write_config(f"{line}\n")
    with pytest.raises(ConnectError, match=r"first: .*\.ssh/config"):
        async with log_in(server, port=server.port):
            pass


@pytest.fixture
def behind_jumps(make_server: MakeServer, tmp_path: Path, ssh_folder: Path) -> Callable[..., Config]:
    """Servers behind a chain of jump hosts; every one has a host key of its own."""

    def configure(jumps: list[str], servers: list[str]) -> Config:
        made = {name: make_server(name) for name in (*jumps, *servers)}
        lines = [
            f"Host {name}\nHostname 127.0.0.1\nPort {server.port}\nUser {server.username}\nIdentityFile {server.key}\n"
            for name, server in made.items()
        ]
        lines += [f"Host {' '.join(servers)}\nProxyJump {','.join(jumps)}\n"]
        (ssh_folder / "config").write_text("".join(lines))
        config = make_configuration([made[name] for name in servers], tmp_path / "project")
        return replace(
            config,
            servers={
                name: replace(config.servers[name], hostname=name, username=None, port=None, private_key=None)
                for name in servers
            },
        )

    return configure


@pytest.mark.row(50)
@pytest.mark.parametrize("jumps", [["bastion"], ["bastion", "inner"]])
async def test_jump_hosts_are_gone_through_and_each_key_is_checked(
    jumps: list[str], behind_jumps: Callable[..., Config], told: Told
) -> None:
    config = behind_jumps(jumps, ["gpu1", "gpu2"])
    async with HostPool(config, report=told.notice) as pool:
        first, second = await asyncio.gather(pool.host("gpu1"), pool.host("gpu2"))
        assert (await first.run("echo $REMOTE_TOOL_TEST_SERVER")).stdout == b"gpu1\n"
        assert (await second.run("echo $REMOTE_TOOL_TEST_SERVER")).stdout == b"gpu2\n"
    assert len(config.local.known_hosts.read_text().splitlines()) == len(jumps) + 2


@pytest.mark.row(50)
async def test_servers_behind_one_jump_host_share_its_connection(
    behind_jumps: Callable[..., Config], tmp_path: Path
) -> None:
    """One login, one question for a password, whatever number of servers is behind it."""
    names = [f"gpu{number}" for number in range(4)]
    config = behind_jumps(["bastion"], names)
    async with HostPool(config) as pool:
        await asyncio.gather(*(pool.host(name) for name in names))
    log = (tmp_path / "servers" / "bastion" / "sshd.log").read_text()
    assert log.count("Accepted publickey") == 1


@pytest.mark.row(50, 116)
async def test_a_changed_key_of_a_jump_host_is_refused_by_name(
    behind_jumps: Callable[..., Config], other_key: HostKey, tmp_path: Path
) -> None:
    config = behind_jumps(["bastion"], ["gpu1"])
    log = tmp_path / "servers" / "bastion" / "sshd.log"
    port = next(line.split()[1] for line in (Path.home() / ".ssh/config").read_text().splitlines() if "Port" in line)
    config.local.known_hosts.write_text(f"[127.0.0.1]:{port} {other_key.text}\n")
    async with HostPool(config) as pool:
        with pytest.raises(HostKeyError, match=r"The host key of jump host bastion .* has changed"):
            await pool.host("gpu1")
    assert "Accepted" not in log.read_text()


@pytest.mark.row(50)
async def test_a_jump_host_that_cannot_reach_the_server_is_named(
    behind_jumps: Callable[..., Config], write_config: Callable[[str], None]
) -> None:
    config = behind_jumps(["bastion"], ["gpu1"])
    text = (Path.home() / ".ssh/config").read_text()
    write_config("Host gpu1\nPort 1\n" + text)
    async with HostPool(config) as pool:
        with pytest.raises(ConnectError, match=r"gpu1: its jump host cannot reach 127\.0\.0\.1:1"):
            await pool.host("gpu1")


@pytest.mark.row(50)
async def test_jump_hosts_in_a_circle_are_an_error(server: TestServer, log_in: LogIn, ssh_folder: Path) -> None:
    (ssh_folder / "config").write_text("Host a\nProxyJump b\nHost b\nProxyJump a\n")
    with pytest.raises(ConnectError, match=r"ProxyJump in ~/\.ssh/config forms a loop: b, a, b"):
        async with log_in(server, hostname="a"):
            pass


async def test_a_proxy_command_of_ssh_config_is_used(
    server: TestServer, log_in: LogIn, write_config: Callable[[str], None]
) -> None:
    script = (
        "import socket,sys,threading,os; s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));"
        "threading.Thread(target=lambda:[s.sendall(d) for d in iter(lambda:os.read(0,9999),b'')],daemon=True).start();"
        "[os.write(1,d) for d in iter(lambda:s.recv(9999),b'')]"
    )
    write_config(f'ProxyCommand python3 -c "{script}" {server.port}\n')
    async with log_in(server, hostname="far-away") as host:
        assert (await host.run("echo in")).stdout == b"in\n"


@pytest.mark.row(172)
async def test_a_proxy_command_that_gets_nowhere_is_quoted_at_once(
    server: TestServer, log_in: LogIn, write_config: Callable[[str], None]
) -> None:
    write_config("ProxyCommand sh -c \"echo 'Warning: new' >&2; echo 'Network is unreachable' >&2; exit 1\"\n")
    began = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        async with log_in(server, hostname="far-away"):
            pass
    assert "cannot be reached through its ProxyCommand: Network is unreachable" in caught.value.message
    assert caught.value.hint.startswith("Check ProxyCommand in ~/.ssh/config")
    # Who waits for an answer waits until the login's time is over, 30 s.
    assert time.monotonic() - began < 20
    await asyncio.sleep(0.5)  # asyncssh does not wait for the program: the loop notices its end, unless it is closed


@pytest.mark.row(172)
async def test_a_missing_local_address_is_not_blamed_on_the_server(
    server: TestServer, log_in: LogIn, write_config: Callable[[str], None]
) -> None:
    write_config("BindAddress 192.0.2.1\n")
    with pytest.raises(ConnectError) as caught:
        async with log_in(server):
            pass
    assert "Cannot assign requested address" in caught.value.message
    assert caught.value.hint.startswith("Does this machine have a route to it")


@pytest.mark.row(176)
async def test_the_key_of_a_server_that_left_the_configuration_is_forgotten(
    server: TestServer, tmp_path: Path, other_key: HostKey
) -> None:
    """Rented machines come and go at the same addresses; a configured one never changes its key silently."""
    config = make_configuration([server], tmp_path / "project")
    known_hosts = config.local.known_hosts

    async def log_in_as(*names: str) -> None:
        servers = {name: replace(config.servers["first"], name=name) for name in names}
        async with HostPool(replace(config, servers=servers)) as pool:
            for name in names:
                await (await pool.host(name)).run("true")

    known_hosts.parent.mkdir(parents=True, exist_ok=True)
    line = f"{name_of(server)} {other_key.text}"
    for note in ("", " by hand", " remote-tool:next:127.0.0.1"):
        known_hosts.write_text(f"{line}{note}\n")
        with pytest.raises(HostKeyError, match="has changed"):
            await log_in_as("next")
    known_hosts.write_text(f"other.host {other_key.text}\n{line} remote-tool:rented:127.0.0.1\n")
    await log_in_as("next")
    shown = f"{name_of(server)} {key_of(server.host_key).text}"
    assert known_hosts.read_text() == f"other.host {other_key.text}\n{shown} remote-tool:next:127.0.0.1\n"
    await log_in_as("next", "twin")
    assert known_hosts.read_text().count(shown) == 2
    known_hosts.write_text(f"{line} remote-tool:next:127.0.0.1\n{line} remote-tool:twin:127.0.0.1\n")
    with pytest.raises(HostKeyError, match="has changed"):
        await log_in_as("twin")
