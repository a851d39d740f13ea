"""A password goes to a host whose key is new only after somebody's yes to its fingerprint."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.model import HostKeyPolicy
from remote_tool.config.servers import Server
from remote_tool.errors import HostKeyError, LoginError
from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh import ssh_config
from remote_tool.transport.ssh.endpoint import AuthMethods
from tests.extended.configuration import make_configuration
from tests.extended.transport.password_server import PasswordServer, password_server
from tests.extended.transport.ssh.host_keys.test_known_hosts import key_of
from tests.extended.transport.ssh.test_log_in import Answers
from tests.sshd import make_key

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.model import Config
    from tests.conftest import MakeServer
    from tests.sshd import TestServer

SECRET = "open sesame"
METHODS = pytest.mark.parametrize("method", ["password", "keyboard-interactive"])


@dataclass
class User:
    """Somebody at a terminal who answers questions about host keys."""

    answer: bool
    questions: list[str] = field(default_factory=list)

    def __call__(self, question: str) -> bool:
        self.questions.append(question)
        return self.answer


@pytest.fixture
def ssh_folder(own_home: Path) -> Path:
    folder = own_home / ".ssh"
    folder.mkdir()
    return folder


def configured(root: Path, server: Server) -> Config:
    return replace(make_configuration([], root), servers={server.name: server})


@METHODS
@pytest.mark.row(141)
@pytest.mark.parametrize("who", ["nobody", "somebody who says no", "somebody who would type it, and says no"])
async def test_no_password_is_sent_to_a_new_host_without_a_yes(who: str, method: str, tmp_path: Path) -> None:
    """Not at the second try either: what was not accepted stays new."""
    user = None if who == "nobody" else User(answer=False)
    typist = Answers(SECRET) if "type" in who else None
    async with password_server(PasswordServer(methods=[method])) as door:
        config = configured(tmp_path, door.server(password=None if typist else SECRET))
        for _ in range(2):
            async with HostPool(config, ask_password=typist, confirm=user) as pool:
                with pytest.raises(HostKeyError) as caught:
                    await pool.host("first")
    assert door.attempts == []
    assert typist is None or typist.prompts == []
    assert str(caught.value) == (
        f"The host key of first (127.0.0.1:{door.port}) is new, so no password was sent to it: "
        f"ssh-ed25519 {door.fingerprint}"
    )
    assert caught.value.hint.endswith("run the command again with --accept-new-keys")
    assert not config.local.known_hosts.exists()
    assert user is None or len(user.questions) == 2


@METHODS
@pytest.mark.row(141)
async def test_after_a_yes_the_password_is_sent_and_nobody_is_asked_again(method: str, tmp_path: Path) -> None:
    user = User(answer=True)
    told: list[str] = []
    async with password_server(PasswordServer(methods=[method])) as door:
        config = configured(tmp_path, door.server(password=SECRET))
        for _ in range(2):
            async with HostPool(config, confirm=user, report=lambda _server, text: told.append(text)) as pool:
                await pool.host("first")
    assert door.attempts == [SECRET, SECRET]
    shown = f"  first (127.0.0.1:{door.port}): ssh-ed25519 {door.fingerprint}"
    assert user.questions == [f"New host key:\n{shown}\nDo you trust it?"]
    assert told == [f"new host key of 127.0.0.1:{door.port} accepted: {door.fingerprint}"]
    assert config.local.known_hosts.read_text().startswith(f"[127.0.0.1]:{door.port} ssh-ed25519 ")


@pytest.mark.row(141)
async def test_a_yes_is_to_one_key_and_to_no_other(tmp_path: Path) -> None:
    """Meanwhile another command has recorded another key of the host."""
    other = key_of(make_key(tmp_path / "other"))
    async with password_server(PasswordServer()) as door:
        config = configured(tmp_path, door.server(password=SECRET))

        def confirm(_question: str) -> bool:
            config.local.known_hosts.write_text(f"[127.0.0.1]:{door.port} {other.text}\n")
            return True

        async with HostPool(config, confirm=confirm) as pool:
            with pytest.raises(HostKeyError, match="has changed"):
                await pool.host("first")
    assert door.attempts == []


@pytest.mark.row(141)
async def test_a_login_by_key_that_fails_makes_no_host_known(tmp_path: Path, ssh_folder: Path) -> None:
    """Else the next command would send it the password."""
    make_key(ssh_folder / "id_ed25519")
    async with password_server(PasswordServer(methods=("publickey", "password"), home=tmp_path)) as door:
        config = configured(tmp_path / "project", door.server(password=SECRET))
        async with HostPool(config) as pool:
            with pytest.raises(LoginError):
                async with pool.login("first", AuthMethods.KEYS):
                    pass
        assert not config.local.known_hosts.exists()
        async with HostPool(config) as pool:
            with pytest.raises(HostKeyError):
                await pool.host("first")
    assert door.attempts == []


@pytest.mark.row(141)
async def test_a_jump_host_gets_no_password_either(tmp_path: Path, ssh_folder: Path) -> None:
    typist = Answers(SECRET)
    async with password_server(PasswordServer()) as door:
        (ssh_folder / "config").write_text(f"Host behind\nProxyJump someone@127.0.0.1:{door.port}\n")
        config = configured(tmp_path, Server("first", "behind"))
        async with HostPool(config, ask_password=typist, confirm=User(answer=False)) as pool:
            with pytest.raises(HostKeyError, match=r"The host key of jump host 127\.0\.0\.1 .* is new"):
                await pool.host("first")
    assert (door.attempts, typist.prompts) == ([], [])


@pytest.mark.row(141)
async def test_a_policy_that_refuses_new_keys_is_not_asked_about(tmp_path: Path) -> None:
    user = User(answer=True)
    async with password_server(PasswordServer()) as door:
        config = replace(configured(tmp_path, door.server(password=SECRET)), host_keys=HostKeyPolicy.STRICT)
        async with HostPool(config, confirm=user) as pool:
            with pytest.raises(HostKeyError, match="is not known"):
                await pool.host("first")
    assert (door.attempts, user.questions) == ([], [])


# What ~/.ssh/config says


@pytest.mark.row(51, 116)
@pytest.mark.parametrize("who", ["nobody", "somebody who says no", "somebody who says yes"])
async def test_strict_host_key_checking_ask_asks_or_refuses(
    who: str, make_server: MakeServer, tmp_path: Path, ssh_folder: Path
) -> None:
    """Before anything is sent, the name of the user included."""
    user = None if who == "nobody" else User(answer=who.endswith("yes"))
    server = make_server("first")
    (ssh_folder / "config").write_text("Host 127.*\nStrictHostKeyChecking Ask\n")
    config = make_configuration([server], tmp_path / "project")
    async with HostPool(config, confirm=user) as pool:
        if user is not None and user.answer:
            assert (await (await pool.host("first")).run("echo in")).stdout == b"in\n"
        else:
            with pytest.raises(HostKeyError, match=r"is new, and StrictHostKeyChecking in ~/\.ssh/config is ask"):
                await pool.host("first")
            assert "Accepted" not in server.log()
            assert "Postponed" not in server.log()
            assert not config.local.known_hosts.exists()
    fingerprint = key_of(server.host_key).fingerprint
    assert user is None or [fingerprint in question for question in user.questions] == [True]


@pytest.mark.row(51)
async def test_strict_host_keys_win_over_ask(make_server: MakeServer, tmp_path: Path, ssh_folder: Path) -> None:
    user = User(answer=True)
    (ssh_folder / "config").write_text("StrictHostKeyChecking ask\n")
    config = make_configuration([make_server("first")], tmp_path / "project", host_keys=HostKeyPolicy.STRICT)
    async with HostPool(config, confirm=user) as pool:
        with pytest.raises(HostKeyError, match="is not known"):
            await pool.host("first")
    assert user.questions == []


@pytest.mark.row(51)
async def test_names_of_hosts_are_hashed_where_ssh_config_says_so(
    make_server: MakeServer, tmp_path: Path, ssh_folder: Path
) -> None:
    server = make_server("first")
    (ssh_folder / "config").write_text("HashKnownHosts yes\n")
    config = make_configuration([server], tmp_path / "project")
    for _ in range(2):
        async with HostPool(config) as pool:
            await pool.host("first")
    (line,) = config.local.known_hosts.read_text().splitlines()
    assert line.startswith("|1|")
    assert "127.0.0.1" not in line
    # OpenSSH reads it as we do.
    (ssh_folder / "known_hosts").write_text(line + "\n")
    (ssh_folder / "config").write_text("StrictHostKeyChecking yes\n")
    assert _ssh_says(server, ssh_folder) == "in\n"


def _ssh_says(server: TestServer, folder: Path) -> str:
    words = ["ssh", "-F", "none", "-o", f"UserKnownHostsFile={folder}/known_hosts", "-o", "StrictHostKeyChecking=yes"]
    words += ["-o", "BatchMode=yes", "-i", str(server.key), "-p", str(server.port), f"{server.username}@127.0.0.1"]
    return subprocess.run([*words, "echo in"], check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.row(51)
@pytest.mark.parametrize(
    ("lines", "interval", "count"),
    [
        ("", ssh_config.KEEPALIVE_SECONDS, ssh_config.KEEPALIVE_COUNT),
        ("ServerAliveInterval 7\n", 7, ssh_config.KEEPALIVE_COUNT),
        ("ServerAliveCountMax 2\n", ssh_config.KEEPALIVE_SECONDS, 2),
        ("Host elsewhere\nServerAliveInterval 7\n", ssh_config.KEEPALIVE_SECONDS, ssh_config.KEEPALIVE_COUNT),
        ("ServerAliveInterval 0\nServerAliveCountMax 0\n", 0, None),
    ],
    ids=["nothing", "interval", "count", "another host", "never"],
)
async def test_signs_of_life_are_asked_for_as_ssh_config_says(
    lines: str, interval: float, count: int | None, make_server: MakeServer, tmp_path: Path, ssh_folder: Path
) -> None:
    (ssh_folder / "config").write_text(lines)
    config = make_configuration([make_server("first")], tmp_path / "project")
    async with HostPool(config) as pool:
        host = await pool.host("first")
        raw = host._connection.raw  # type: ignore[attr-defined]
        assert raw._keepalive_interval == interval
        assert count is None or raw._keepalive_count_max == count
