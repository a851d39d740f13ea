"""Files of known hosts say to us what they say to ssh."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.project import make_project
from tests.promises.conftest import Desk
from tests.sshd import make_key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer


@pytest.fixture
def ssh_folder(own_home: Path) -> Path:
    folder = own_home / ".ssh"
    folder.mkdir(mode=0o700)
    return folder


def public_key(private: Path) -> str:
    return " ".join(private.with_name(f"{private.name}.pub").read_text().split()[:2])


@pytest.fixture
def certified(make_server: MakeServer, tmp_path: Path) -> Desk:
    """A server whose key an authority has signed, and a project that takes no new key."""
    server, authority = make_server(), make_key(tmp_path / "authority")
    server.stop()
    words = ["ssh-keygen", "-q", "-s", str(authority), "-h", "-I", "id", "-n", "127.0.0.1", f"{server.host_key}.pub"]
    subprocess.run(words, check=True)
    server.options["HostCertificate"] = f"{server.host_key}-cert.pub"
    server.start()
    return Desk(make_project(tmp_path / "project", [server], host_keys="strict"), {"first": server})


@pytest.mark.row(41)
def test_a_certificate_counts_where_its_authority_is_known(certified: Desk, ssh_folder: Path, tmp_path: Path) -> None:
    make_key(tmp_path / "other")

    def know(authority: str) -> None:
        line = f"@cert-authority [127.0.0.1]:* {public_key(tmp_path / authority)}\n"
        (ssh_folder / "known_hosts").write_text(line)

    know("other")
    assert "host key" in certified.refuses("run", "--cmd", "true", status=4)
    assert "Accepted" not in certified.servers["first"].log()
    know("authority")
    certified.does("run", "--cmd", "true")


@pytest.mark.row(39, 40)
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_a_server_that_ssh_knows_by_another_key_of_any_kind_is_not_new(desk: Desk, ssh_folder: Path, kind: str) -> None:
    desk.configure(keep_connections=0)
    (desk.root / ".remote" / "known_hosts").unlink()
    other = ssh_folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(other)], check=True)
    (ssh_folder / "mine").write_text(f"[127.0.0.1]:{desk.servers['first'].port} {public_key(other)}\n")
    (ssh_folder / "config").write_text(f"UserKnownHostsFile {ssh_folder}/mine\n")
    for words in ((), ("--accept-new-keys",)):
        said = desk.refuses("run", *words, "--cmd", "true", status=4)
        assert "has changed" in said
        assert f"{ssh_folder}/mine:1" in said
    assert not (desk.root / ".remote" / "known_hosts").exists()
