"""What lies around a connection: name servers, Kerberos, and the ssh program, which we do not use."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest

from remote_tool.errors import HostKeyError
from remote_tool.paths import RemotePaths
from remote_tool.transport.pool import HostPool
from remote_tool.transport.sync.project.snapshot import SelectionRules, take_snapshot
from remote_tool.transport.sync.push import push
from remote_tool.transport.sync.push_options import PushOptions
from remote_tool.workflows.events import ignore
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.configuration import make_configuration
from tests.project import make_project
from tests.sshd import make_key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extended.transport.conftest import LogIn
    from tests.sshd import TestServer

SLOW_NAMES = """
import socket, sys, time
from remote_tool.transport.ssh import login_errors
login_errors.CONNECT_SECONDS = 0.5
real = socket.getaddrinfo
def slow(host, *arguments, **options):
    if host == "slow.example":
        time.sleep(300)
    return real(host, *arguments, **options)
socket.getaddrinfo = slow
from remote_tool.cli.app import main
sys.exit(main())
"""


@pytest.mark.row(59)
@pytest.mark.slow
def test_a_slow_name_server_is_a_timeout_and_does_not_hold_up_the_end(tmp_path: Path, server: TestServer) -> None:
    """The system's resolver cannot be told to stop, so its thread is left behind."""
    project = make_project(tmp_path / "project", [server])
    file = project / ".remote" / "configs.yaml"
    file.write_text(file.read_text().replace("127.0.0.1", "slow.example"))
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", SLOW_NAMES, "run", "--cmd", "true"],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert time.monotonic() - began < 60
    assert "slow.example" in ended.stderr
    assert "did not answer within 0.5 s" in ended.stderr
    assert ended.returncode == 4


@pytest.mark.row(59)
async def test_gssapi_is_off_whatever_ssh_config_says(
    server: TestServer, own_home: Path, monkeypatch: pytest.MonkeyPatch, log_in: LogIn
) -> None:
    """It would ask a Kerberos server, which may be far away."""
    (own_home / ".ssh").mkdir(exist_ok=True)
    (own_home / ".ssh" / "config").write_text("GSSAPIAuthentication yes\nGSSAPIKeyExchange yes\n")
    seen: dict[str, object] = {}
    connect = asyncssh.connect

    async def watched(*arguments: Any, **options: Any) -> Any:
        seen.update(options)
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncssh, "connect", watched)
    async with log_in(server) as host:
        assert (await host.run("echo in")).stdout == b"in\n"
    assert (seen["gss_auth"], seen["gss_kex"], seen["gss_host"]) == (False, False, None)


@pytest.mark.row(63)
async def test_a_control_master_of_ssh_config_changes_nothing(
    server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_in: LogIn
) -> None:
    """With a socket that nobody answers at, and a home so deep that no socket's path would fit (108 bytes)."""
    home = tmp_path.joinpath(*["a-rather-long-name-of-a-folder"] * 5)
    (home / ".ssh").mkdir(parents=True)
    with closing(socket.socket(socket.AF_UNIX)) as stale:
        monkeypatch.chdir(home / ".ssh")
        stale.bind("stale")
    (home / ".ssh" / "config").write_text(
        "ControlMaster auto\nControlPersist 1h\nControlPath ~/.ssh/stale\n"
        f"Match host 127.0.0.1\n  ControlPath {home}/.ssh/control-%C\n"
    )
    monkeypatch.setenv("HOME", str(home))
    async with log_in(server) as host:
        assert (await host.run("echo in")).stdout == b"in\n"
        wanted = await take_snapshot(home, SelectionRules(home / "exclude.txt"))
        await push(host, RemotePaths("project"), wanted, PushOptions())
    assert {path.name for path in (home / ".ssh").iterdir()} == {"config", "stale"}


@pytest.mark.row(38, 40)
async def test_a_sync_starts_no_ssh_and_is_refused_where_we_are(
    server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ssh program here would trust the server; it is not asked, and nothing is sent."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "ssh"
    fake.write_text(
        f'#!/bin/sh\necho started >> {tmp_path}/started\nexec {shutil.which("ssh")} -o StrictHostKeyChecking=no "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    config = make_configuration([server], tmp_path / "project")
    (config.local.root / "a.py").write_text("a\n")
    other = make_key(tmp_path / "other").with_name("other.pub").read_text()
    config.local.known_hosts.write_text(f"[127.0.0.1]:{server.port} {other}")
    async with HostPool(config) as pool:
        refused = await sync(pool, config, (), SyncOptions(), ignore)
    assert isinstance(refused.errors["first"], HostKeyError)
    assert not (server.home / "project").exists()
    assert "Accepted" not in server.log()

    config.local.known_hosts.unlink()
    async with HostPool(config) as pool:
        assert (await sync(pool, config, (), SyncOptions(), ignore)).values["first"].sent == ("a.py",)
    assert server.log().count("Accepted publickey") == 1, "the commands and rsync share one login"
    assert not (tmp_path / "started").exists()
