"""The keys command as people and scripts see it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import yaml

from tests.cli.described import undescribed
from tests.project import remote_tool
from tests.sshd import free_port
from tests.transport.password_server import PasswordServer, password_server

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SECRET = "open sesame"


def configure(root: Path, ports: dict[str, int]) -> None:
    server = {"hostname": "127.0.0.1", "username": "someone", "password_env": "DOOR"}
    servers = {name: {**server, "port": port} for name, port in ports.items()}
    (root / ".remote").mkdir(parents=True, exist_ok=True)
    (root / ".remote" / "configs.yaml").write_text(yaml.safe_dump({"servers": servers}, sort_keys=False))


async def keys(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(remote_tool, "keys", *options, cwd=root, environment={"DOOR": SECRET})


async def test_what_is_said_and_how_it_ends(tmp_path: Path, own_home: Path) -> None:
    methods = ("publickey", "password")
    homes = [tmp_path / "first", tmp_path / "second"]
    for home in homes:
        home.mkdir()
    root = tmp_path / "project"
    async with (
        password_server(PasswordServer(SECRET, methods, home=homes[0])) as first,
        password_server(PasswordServer(SECRET, methods, home=homes[1])) as second,
    ):
        configure(root, {"first": first.port, "second": second.port, "away": free_port()})
        asked = await keys(root, "--dry-run", "--server", "first")
        assert asked.stdout == f"first: no key logs in; would add {own_home}/.ssh/id_ed25519 (a new one)\n"
        assert asked.stderr.endswith("nothing was changed\n")
        added = await keys(root)
        assert added.returncode == 3
        public = (own_home / ".ssh" / "id_ed25519.pub").read_text().strip()
        assert added.stdout == "".join(
            f"{door.home.name}: added to {door.authorized_keys}: {public}\n" for door in (first, second) if door.home
        )
        assert f"made {own_home}/.ssh/id_ed25519 and " in added.stderr
        assert re.search(r"^error: away: 127.0.0.1:\d+ refuses connections$", added.stderr, re.MULTILINE)
        again = await keys(root, "--json", "--server", "first", "--server", "second")
    assert (again.returncode, again.stderr.splitlines()[-1:]) == (
        0,
        ["next: remote-tool prepare --server first --server second"],
    )
    document = json.loads(again.stdout)
    assert (document["errors"], undescribed(document)) == ([], set())
    assert document["servers"][0] == {
        "server": "first",
        "state": "works",
        "key": f"{own_home}/.ssh/id_ed25519",
        "line": public,
        "file": "",
        "changed": False,
    }
