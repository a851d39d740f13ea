"""A forward takes nothing away from a server."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.promises.conftest import Desk


@pytest.mark.parametrize("kind", ["file", "empty", "folder", "link", "FIFO"])
def test_a_reverse_forward_replaces_nothing_but_a_socket(desk: Desk, kind: str) -> None:
    place, kept = desk.there() / "results", desk.there() / "kept.csv"
    kept.write_text("a day's work\n")
    made: dict[str, Callable[[], object]] = {
        "file": lambda: place.write_text("a day's work\n"),
        "empty": place.touch,
        "folder": place.mkdir,
        "link": lambda: place.symlink_to(kept),
        "FIFO": lambda: os.mkfifo(place),
    }
    made[kind]()
    before = place.lstat()
    said = desk.refuses("forward", "--reverse", f"{place}:localhost:6006")
    assert f"{place} is a {kind.replace('empty', 'file')} on the server" in said
    assert "hint:" in said
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert kept.read_text() == "a day's work\n"


def test_a_reverse_forward_replaces_a_stale_socket_and_at_its_end_removes_only_its_own(desk: Desk) -> None:
    place, other = desk.there() / "a.sock", desk.there() / "b.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(place))
    was = place.stat().st_ino, place.stat().st_mtime_ns
    words = ("forward", "--reverse", f"{place}:localhost:6006", f"{other}:localhost:6006")
    with desk.runs_meanwhile(*words) as forwarding:
        until(lambda: other.exists() or forwarding.poll() is not None, "the forward listens")
        assert (place.stat().st_ino, place.stat().st_mtime_ns) != was
        place.unlink()
        place.write_text("a result that another program has put there\n")
        forwarding.terminate()
    until(lambda: not other.exists(), "the forward has ended on the server")
    assert place.read_text() == "a result that another program has put there\n"


def test_the_same_port_of_several_servers_is_said_to_go_to_the_first(desk_of_two: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with desk_of_two.runs_meanwhile("forward", str(port)) as forwarding:
        assert forwarding.stdout is not None
        lines = sorted(forwarding.stdout.readline() for _ in range(2))
        forwarding.terminate()
    assert any(f"on second (port {port} here goes to first)" in line for line in lines), lines
    assert not any("not free" in line for line in lines)


def test_ssh_config_names_only_keys_that_exist(desk: Desk, tmp_path: Path) -> None:
    settings = desk.settings()["servers"]["first"]
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    for name in ("id_ed25519", "id_rsa.pub"):
        (home / ".ssh" / name).touch(0o600)
    desk.configure(servers={"first": {key: settings[key] for key in settings if key != "private_key"}})
    printed = desk.does("ssh-config", environment={"HOME": str(home)})
    named = [line.split()[1].strip('"') for line in printed.splitlines() if line.strip().startswith("IdentityFile")]
    assert all(name.endswith(("id_ed25519", "id_rsa")) for name in named), printed
    assert named
    desk.configure(servers={"first": {**settings, "private_key": str(tmp_path / "missing")}})
    ran = desk.tries("ssh-config", environment={"HOME": str(home)})
    assert ran.returncode == 0
    assert "missing" not in ran.stdout
    assert "IdentityFile" not in ran.stdout
    assert "IdentitiesOnly" not in ran.stdout
    assert f"first: its private_key {tmp_path / 'missing'} does not exist, so no key is named" in ran.stderr
    (tmp_path / "missing.pub").touch()
    assert f'IdentityFile "{tmp_path}/missing"' in desk.does("ssh-config", environment={"HOME": str(home)})


@pytest.mark.row(243)
def test_settings_for_ssh_are_one_line_and_go_without_a_trace(desk: Desk, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    own = home / ".ssh" / "config"
    own.write_text("Host other\n  Port 2222\n")
    before = own.read_bytes()
    desk.does("ssh-config", "--install", environment={"HOME": str(home)})
    added = [line for line in own.read_text().splitlines() if line not in before.decode().splitlines()]
    assert [line.split()[0] for line in added if line.strip()] == ["Include"]
    assert own.read_bytes().endswith(before)
    desk.does("ssh-config", "--remove", environment={"HOME": str(home)})
    assert own.read_bytes() == before
