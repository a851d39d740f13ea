"""How we got in is told as it was: the key that was taken of several, or the password."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from remote_tool.transport.pool import HostPool
from remote_tool.transport.ssh.key_files import key_name
from tests.extended.transport.password_server import PasswordServer, password_server, trust
from tests.extended.transport.ssh.test_log_in import configured

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.extended.transport.conftest import LogIn


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("ssh-ed25519", "ed25519 key"),
        ("rsa-sha2-512", "rsa key"),
        ("ecdsa-sha2-nistp256", "ecdsa key"),
        ("sk-ssh-ed25519@openssh.com", "ed25519-sk key"),
        ("ssh-ed25519-cert-v01@openssh.com", "ed25519 certificate"),
        ("rsa-sha2-256-cert-v01@openssh.com", "rsa certificate"),
    ],
)
def test_a_kind_of_key_is_named_as_people_name_it(algorithm: str, name: str) -> None:
    assert key_name(algorithm) == name


async def test_of_several_keys_the_one_is_told_that_was_taken(
    make_server: MakeServer, log_in: LogIn, own_home: Path
) -> None:
    """An rsa key is offered too, and refused."""
    server = make_server()
    keys = own_home / ".ssh"
    keys.mkdir(mode=0o700)
    shutil.copy(server.key, keys / "id_ed25519")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(keys / "id_ecdsa")], check=True, capture_output=True
    )
    (keys / "config").write_text("IdentityFile ~/.ssh/id_ecdsa\nIdentityFile ~/.ssh/id_ed25519\n")
    async with log_in(server, private_key=None) as host:
        assert (host.login.username, host.login.method) == (server.username, "ed25519 key")
        assert host.login.is_new
        assert host.login.host_key.startswith("ed25519 key SHA256:")
    async with log_in(server, private_key=None) as host:
        assert not host.login.is_new


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
async def test_the_login_method_names_a_password_without_its_value(tmp_path: Path, method: str) -> None:
    async with (
        password_server(PasswordServer(methods=[method])) as door,
        HostPool(configured(door.server(password=door.password), tmp_path), confirm=trust) as pool,
    ):
        assert (await pool.host("first")).login.method == "password"
