"""The keys command as people and scripts see it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.described import undescribed
from tests.extended.transport.password_server import PasswordServer, password_server
from tests.program import remote_tool
from tests.sshd import free_port
from tests.terminal import Terminal

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


@pytest.mark.row(141)
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
        assert asked.stdout == f"first: no key works; would add {own_home}/.ssh/id_ed25519 (new)\n"
        assert asked.stderr.endswith("nothing was changed\n")
        refused = await keys(root)
        assert refused.returncode == 4
        for door, name in ((first, "first"), (second, "second")):
            text = f"error: The host key of {name} (127.0.0.1:{door.port}) is new, so no password was sent to it: "
            assert f"{text}ssh-ed25519 {door.fingerprint}\n" in refused.stderr
            assert door.attempts == []
        assert refused.stderr.count("run the command again with --accept-new-keys") == 1
        assert not (own_home / ".ssh").exists()
        added = await keys(root, "--accept-new-keys")
        assert added.returncode == 3
        assert f"first: new host key of 127.0.0.1:{first.port} accepted: {first.fingerprint}\n" in added.stderr
        public = (own_home / ".ssh" / "id_ed25519.pub").read_text().strip()
        assert added.stdout == "".join(
            f"{door.home.name}: added to {door.authorized_keys}: {public}\n" for door in (first, second) if door.home
        )
        assert f"created {own_home}/.ssh/id_ed25519 and " in added.stderr
        assert re.search(r"^error: away: 127.0.0.1:\d+ refused the connection$", added.stderr, re.MULTILINE)
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


@pytest.mark.row(141)
async def test_on_a_terminal_one_question_is_about_all_new_host_keys(tmp_path: Path) -> None:
    """No sends nothing, Ctrl-C ends the program at once, and after a yes the password is asked for."""
    root = tmp_path / "project"
    homes = [tmp_path / "first", tmp_path / "second"]
    for home in homes:
        home.mkdir()
    methods = ("publickey", "password")
    async with (
        password_server(PasswordServer(SECRET, methods, home=homes[0])) as first,
        password_server(PasswordServer(SECRET, methods, home=homes[1])) as second,
    ):
        configure(root, {"first": first.port, "second": second.port})
        shown = "".join(
            f"  {name} (127.0.0.1:{door.port}): ssh-ed25519 {door.fingerprint}\n"
            for name, door in (("first", first), ("second", second))
        )
        question = f"New host keys:\n{shown}Do you trust them? [y/N]: "

        def answer(*typed: str) -> tuple[int, str]:
            with Terminal("keys", cwd=root) as terminal:
                for prompt, text in zip((question, "enter them one by one): "), typed, strict=False):
                    terminal.until(prompt)
                    terminal.type(text)
                return terminal.end(), terminal.text

        assert (await asyncio.to_thread(answer, "\x03"))[0] == 130
        status, text = await asyncio.to_thread(answer, "n\n")
        assert (status, " ".join(text.split()).count("so no password was sent to it")) == (4, 2)
        assert (first.attempts, second.attempts) == ([], [])
        status, text = await asyncio.to_thread(answer, "y\n", f"{SECRET}\n")
        assert (status, text.count("added to ")) == (0, 2), text
        assert (first.attempts, second.attempts) == ([SECRET], [SECRET])
