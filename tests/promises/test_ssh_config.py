"""ssh-config, and the real ssh and scp with what it prints."""

from __future__ import annotations

import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.program import remote_tool
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


def project_with(root: Path, servers: dict[str, dict[str, object]]) -> Path:
    (root / ".remote").mkdir(parents=True)
    (root / ".remote" / "configs.yaml").write_text(yaml.safe_dump({"name": "project", "servers": servers}))
    return root


def written(root: Path, *words: str) -> str:
    printed = remote_tool("ssh-config", *words, cwd=root)
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


def by_ssh(settings: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the first server with OpenSSH and these settings; it may ask nothing."""
    strict = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")
    words = ["ssh", "-F", str(settings), *strict, "gpu1", command]
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)


@needs_ssh
def test_ssh_and_scp_reach_a_server_by_its_name_without_a_question(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("gpu1", Subsystem="sftp internal-sftp")
    root = make_project(tmp_path / "a project 100%", [server])
    # The first contact records the host key in our file, which only the block names.
    assert "first contact" not in remote_tool("check", cwd=root).stderr
    file = tmp_path / "ssh_config"
    file.write_text(written(root))
    options = ("-F", str(file), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")
    answer = subprocess.run(
        ["ssh", *options, "gpu1", "echo $REMOTE_TOOL_TEST_SERVER"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.stdout == "gpu1\n"
    (tmp_path / "note").write_text("hello")
    subprocess.run(["scp", "-q", *options, "note", f"gpu1:{server.home}/note"], check=True, cwd=tmp_path, timeout=300)
    assert (server.home / "note").read_text() == "hello"


@needs_ssh
def test_a_server_behind_jump_hosts_is_reached_with_our_host_keys_on_the_way(
    make_server: MakeServer, tmp_path: Path, own_home: Path
) -> None:
    gate, server = make_server("gate"), make_server("gpu1")
    (own_home / ".ssh").mkdir(mode=0o700)
    (own_home / ".ssh" / "config").write_text(
        f"Host lab\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.username}\n"
        f"  IdentityFile {server.key}\n  ProxyJump {gate.username}@gate\n  HostKeyAlias the-lab\n"
        f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  IdentityFile {gate.key}\n"
    )
    root = project_with(tmp_path / "project", {"gpu1": {"hostname": "lab"}})
    remote_tool("check", cwd=root)
    file = tmp_path / "ssh_config"
    file.write_text(written(root, "--server", "gpu1"))
    answer = by_ssh(file, "hostname; exit 7")
    assert answer.returncode == 7, answer.stderr
    assert "Accepted publickey" in gate.log()


def test_what_ssh_config_cannot_express_is_said_and_the_others_are_printed(tmp_path: Path, own_home: Path) -> None:
    (own_home / ".ssh").mkdir(mode=0o700)
    (own_home / ".ssh" / "config").write_text("Host lab\n  ProxyCommand nc %h %p\n")
    root = project_with(
        tmp_path / "project",
        {
            "gpu1": {"hostname": "10.0.0.5", "username": "me", "port": 2222},
            "gpu2": {"hostname": "lab"},
            "gpu3": {"hostname": "10.0.0.6", "private_key": 'a"b'},
        },
    )
    (root / 'a"b').touch()
    printed = remote_tool("ssh-config", cwd=root)
    assert printed.returncode == 3
    lines = [line.strip() for line in printed.stdout.splitlines()]
    assert lines[:4] == ["Host gpu1", 'HostName "10.0.0.5"', 'Port "2222"', 'User "me"']
    assert [line for line in lines if line.startswith("Host ")] == ["Host gpu1"]
    assert "gpu2: lab has a ProxyCommand in ~/.ssh/config" in printed.stderr
    assert "gpu3: ssh_config cannot represent" in printed.stderr


def test_what_is_included_in_the_users_own_file_changes_nothing_of_the_next_print(
    tmp_path: Path, own_home: Path
) -> None:
    (own_home / ".ssh").mkdir(mode=0o700)
    (own_home / ".ssh" / "config").write_text("Host gpu1\n  HostName 10.0.0.5\n  User me\n  ProxyJump you@10.0.0.1\n")
    root = project_with(tmp_path / "project", {"gpu1": {"hostname": "gpu1"}})
    first = written(root)
    (own_home / ".ssh" / "remote-tool.conf").write_text(first)
    config = own_home / ".ssh" / "config"
    config.write_text(f"Include remote-tool.conf\n{config.read_text()}")
    assert "Host gpu1-jump1\n" in first
    assert written(root) == first


@needs_ssh
@pytest.mark.row(243)
def test_installed_settings_come_first_for_ssh_itself_and_go_without_a_trace(
    make_server: MakeServer, tmp_path: Path, own_home: Path
) -> None:
    server = make_server("gpu1")
    root = make_project(tmp_path / "a project", [server])
    remote_tool("check", cwd=root)
    dotfiles = own_home / "dotfiles"
    dotfiles.mkdir()
    (own_home / ".ssh").mkdir(mode=0o700)
    config = own_home / ".ssh" / "config"
    config.symlink_to(dotfiles / "ssh_config")
    before = b"# Mine\nHost gpu1\n  Port 1\n\nHost *\n  User nobody\n"
    config.write_bytes(before)
    config.chmod(0o640)
    for _ in range(2):
        installed = remote_tool("ssh-config", "--install", cwd=root)
        file = own_home / ".ssh" / "remote-tool" / "project.conf"
        assert (installed.returncode, installed.stdout) == (0, ""), installed.stderr
        assert installed.stderr == f"wrote {file}: gpu1\n"
        assert config.read_bytes() == b"Include remote-tool/*.conf\n\n" + before
        assert config.is_symlink()
        assert (mode_of(config), mode_of(file), mode_of(file.parent)) == (0o640, 0o600, 0o700)
    # OpenSSH reads the home of the account, not $HOME; so this file is named, and what it includes is made absolute.
    shown = tmp_path / "shown"
    shown.write_text(config.read_text().replace("remote-tool/*", f"{file.parent}/*"))
    answer = by_ssh(shown, "exit 7")
    assert answer.returncode == 7, answer.stderr
    # It changes nothing about our own logins.
    assert remote_tool("ssh-config", "--install", cwd=root).returncode == 0
    removed = remote_tool("ssh-config", "--remove", cwd=root)
    assert removed.stderr == f"removed {file}\n"
    assert config.read_bytes() == before
    assert config.is_symlink()
    assert sorted(path.name for path in config.parent.iterdir()) == ["config"]
    assert remote_tool("ssh-config", "--remove", cwd=root).stderr == f"there is no {file}\n"


@pytest.mark.row(243)
def test_two_projects_share_the_line_and_each_removes_its_own_file(tmp_path: Path, own_home: Path) -> None:
    first, second = (project_with(tmp_path / name, {name: {"hostname": "10.0.0.5"}}) for name in ("one", "two"))
    text = (second / ".remote" / "configs.yaml").read_text()
    (second / ".remote" / "configs.yaml").write_text(text.replace("name: project", "name: dev/two"))
    for root in (first, second):
        assert remote_tool("ssh-config", "--install", cwd=root).returncode == 0
    config, folder = own_home / ".ssh" / "config", own_home / ".ssh" / "remote-tool"
    assert config.read_text() == "Include remote-tool/*.conf\n"
    assert mode_of(config) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["dev-two.conf", "project.conf"]
    assert remote_tool("ssh-config", "--remove", cwd=first).returncode == 0
    assert config.read_text() == "Include remote-tool/*.conf\n"
    assert remote_tool("ssh-config", "--remove", cwd=second).returncode == 0
    assert list(config.parent.iterdir()) == []


@pytest.mark.row(243)
def test_a_line_below_a_host_does_not_count_and_stays(tmp_path: Path, own_home: Path) -> None:
    root = project_with(tmp_path / "project", {"gpu1": {"hostname": "10.0.0.5"}})
    (own_home / ".ssh").mkdir(mode=0o700)
    config = own_home / ".ssh" / "config"
    # The user's own, which is for one host, and has no line end.
    before = "Host lab\nInclude remote-tool/*.conf\n  User me"
    config.write_text(before)
    assert remote_tool("ssh-config", "--install", cwd=root).returncode == 0
    assert config.read_text() == f"Include remote-tool/*.conf\n\n{before}"
    assert remote_tool("ssh-config", "--remove", cwd=root).returncode == 0
    assert config.read_text() == before


@pytest.mark.row(243)
def test_what_cannot_be_installed_is_one_sentence_and_changes_nothing(tmp_path: Path, own_home: Path) -> None:
    root = project_with(tmp_path / "project", {"gpu1": {"hostname": "10.0.0.5"}})
    other = project_with(tmp_path / "other", {"gpu1": {"hostname": "10.0.0.6"}})
    assert remote_tool("ssh-config", "--install", cwd=root).returncode == 0
    file = own_home / ".ssh" / "remote-tool" / "project.conf"
    content = file.read_text()
    for words in (("--install",), ("--remove",)):
        refused = remote_tool("ssh-config", *words, cwd=other)
        assert refused.returncode == 2
        assert f"error: {file} belongs to '{root}'" in refused.stderr
    assert file.read_text() == content
    unknown = remote_tool("ssh-config", "--install", "--server", "gpu9", cwd=root)
    assert (unknown.returncode, "error: Unknown server 'gpu9'" in unknown.stderr) == (2, True)
    assert remote_tool("ssh-config", "--remove", "--server", "gpu1", cwd=root).returncode == 2
    assert remote_tool("ssh-config", "--remove", cwd=root).returncode == 0
    file.parent.parent.mkdir(exist_ok=True)
    file.parent.touch()
    refused = remote_tool("ssh-config", "--install", cwd=root)
    assert (refused.returncode, f"error: {file.parent} cannot be changed" in refused.stderr) == (2, True)
    assert not (own_home / ".ssh" / "config").exists()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
