"""keys with real sshd that asks for passwords and looks at permissions, as it comes from distributions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.workspace import Hooks
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network_hosts import Network, NetworkHost

SECRET = "open sesame"
# What crypt(3) makes of it.
HASH = "$6$saltsaltsalt$VQCHS9jZgaZl0Mz8sqN5nA3FDB2mZS2FVgYEe0e4sFYq/qRvjoS1fr5tPcf7bV5VL3IUbzNg9QpxpMaPXE2jT1"


def take_passwords(host: NetworkHost) -> None:
    """Let root log in with the password, and with the keys in its home; nothing of this machine's accounts changes."""
    (host.folder / "shadow").write_text(f"root:{HASH}:20000:0:99999:7:::\n")
    linked = host.run("ln", "-sf", "/mnt/host/shadow", "/etc/shadow")
    assert linked.returncode == 0, linked.stderr
    host.options |= {
        "PasswordAuthentication": "yes",
        "StrictModes": "yes",
        "AuthorizedKeysFile": ".ssh/authorized_keys",
    }
    host.reload_sshd()


@pytest.mark.slow
def test_passwords_of_real_servers_become_a_key_and_permissions_are_explained(
    network: Network, tmp_path: Path, own_home: Path
) -> None:
    first, second = network.hosts("first", "second")
    for host in (first, second):
        take_passwords(host)
    second.home.chmod(0o777)
    config = make_configuration([first, second], tmp_path / "project")
    servers = {name: replace(server, private_key=None) for name, server in config.servers.items()}
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return SECRET

    workspace = Workspace(replace(config, servers=servers), Hooks(ask_password=ask, confirm=lambda _: True))
    results = workspace.install_keys(check=False)
    assert prompts == ["Password of root on first, second (leave empty to enter them one by one): "]
    assert {server: key.state for server, key in results.values.items()} == {"first": "added"}
    line = (own_home / ".ssh" / "id_ed25519.pub").read_text()
    assert (first.home / ".ssh" / "authorized_keys").read_text() == line
    error = results.errors["second"]
    assert "other users may write to /mnt/home, so sshd ignores the keys there (StrictModes)" in str(error)
    assert error.hint == "On second: chmod go-w /mnt/home"
    second.home.chmod(0o755)
    assert {key.state for key in workspace.install_keys().values.values()} == {"works"}
    assert (second.home / ".ssh" / "authorized_keys").read_text() == line
    assert len(prompts) == 1
