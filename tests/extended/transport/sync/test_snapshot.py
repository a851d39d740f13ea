"""Which files a sync takes: never a secret, any name, no link that leads out, nothing that is no file."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.extended.configuration import make_configuration
from tests.extended.transport.sync.test_push import PRIVATE_KEY, Desk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

SECRETS = (
    ".env",
    ".env.production",
    ".git/config",
    ".netrc",
    "sub/.env",
    "sub/deep/.env",
    "sub/.git/HEAD",
    ".ssh/config",
)


@pytest.fixture
def desk(make_server: MakeServer, tmp_path: Path) -> Desk:
    server = make_server()
    return Desk(make_configuration([server], tmp_path / "project"), server)


def plant_secrets(desk: Desk) -> None:
    for name in SECRETS:
        desk.write(name, "canary\n")
    for name in ("id_rsa", "sub/my_key", "sub/server.pem", "keys/id_deploy"):
        desk.write(name, PRIVATE_KEY)
    desk.write(".remote/private_key", PRIVATE_KEY)


HARMLESS = {"a.py", "sub", "sub/deep", "sub/b.py", "keys", "id_rsa.pub", "sub/public.pem", ".env.example"}


def plant_harmless(desk: Desk) -> None:
    desk.write("a.py")
    desk.write("sub/b.py")
    desk.write("id_rsa.pub", "ssh-ed25519 AAAA\n")
    desk.write("sub/public.pem", "-----BEGIN CERTIFICATE-----\n")
    desk.write(".env.example", "TOKEN=\n")


@pytest.mark.row(83, 112)
@pytest.mark.parametrize(
    "rules", [None, b"", b"+ .env\n+ .env.*\n+ id_*\n+ .git\n+ .git/**\n+ *\n", b"!\n", b"+ .env\r\n!\r\n", b"+ **\n"]
)
async def test_secrets_never_leave_whatever_exclude_txt_says(desk: Desk, rules: bytes | None) -> None:
    plant_harmless(desk)
    plant_secrets(desk)
    if rules is not None:
        desk.exclude(rules)
    result = await desk.sync()
    assert desk.names() == HARMLESS
    reasons = dict(result.skipped)
    assert {"id_rsa", "sub/my_key", "sub/server.pem", "keys/id_deploy", ".env", "sub/deep/.env"} <= set(reasons)
    assert reasons["sub/my_key"] == "is a private key"
    assert "not sent: sub/my_key is a private key" in desk.notices


@pytest.mark.row(112)
async def test_the_configured_private_key_stays_whatever_its_name(desk: Desk) -> None:
    key = desk.config.servers["first"].private_key
    assert key is not None
    desk.write("a.py")
    inside = desk.project / "harmless.txt"
    inside.write_bytes(key.read_bytes())
    inside.chmod(0o600)
    server = replace(desk.config.servers["first"], private_key=inside)
    desk.config = replace(desk.config, servers={"first": server})
    await desk.sync()
    assert desk.names() == {"a.py"}


@pytest.mark.row(83)
async def test_the_users_patterns_hold_inside_folders_too(desk: Desk) -> None:
    for name in ("a.py", "sub/b.py", "sub/big.bin", "sub/deep/big.bin", "data/x", "sub/data/keep", "kept/x", "kept/y"):
        desk.write(name)
    desk.exclude(b"\xef\xbb\xbf# comment\r\n*.bin\r\n/data/  \r\n+ kept/x\nkept/*\n")
    await desk.sync()
    assert {name for name in desk.names() if (desk.copy / name).is_file()} == {
        "a.py",
        "sub/b.py",
        "sub/data/keep",
        "kept/x",
    }


@pytest.mark.row(83)
async def test_a_pattern_of_any_bytes_is_taken(desk: Desk) -> None:
    desk.write("a.py")
    desk.write(b"caf\xe9.txt")
    desk.write("tea.txt")
    desk.exclude(b"caf\xe9.txt\n[\n\\\n")
    await desk.sync()
    assert desk.names() == {"a.py", "tea.txt"}


async def test_what_is_not_excluded_any_more_arrives_and_what_is_now_stays_there(desk: Desk) -> None:
    desk.write("a.py")
    desk.write("data/big.bin")
    desk.exclude(b"*.bin\n")
    await desk.sync()
    assert desk.names() == {"a.py", "data"}
    desk.exclude(b"")
    assert (await desk.sync()).sent == ("data/big.bin",)
    desk.exclude(b"*.bin\n")
    assert (await desk.sync()).removed == ()
    assert "data/big.bin" in desk.names()


ODD_NAMES = (
    b"new\nline.py",
    b'it\'s "quoted".py',
    b"$(touch injected).py",
    b"`touch injected`.py",
    b"; touch injected",
    b"--delete",
    b"-e sh",
    b"#comment",
    b";semicolon",
    b"esc\x1b[2J.py",
    b"latin-\xe9\xff.txt",
    b"back\\#012slash",
    b"tail ",
    b" lead",
    b"carriage\rreturn",
    b"star*[a]?",
    "\u00fcml\u00e4ut \u202e".encode(),
    b"dir-\xe9\n/inside\\",
    b"~/home",
    b"colon:name",
    b'skipping non-regular file "x"',
    b"deep/-n/.../x",
)


@pytest.mark.row(84)
async def test_any_name_arrives_as_it_is_and_goes_again(desk: Desk) -> None:
    desk.write("a.py")
    for name in ODD_NAMES:
        desk.write(name)
    result = await desk.sync()
    there = {os.fsencode(name) for name in desk.names() if (desk.copy / name).is_file()}
    assert there == {*ODD_NAMES, b"a.py"}
    assert len(result.sent) == len(ODD_NAMES) + 1
    assert (await desk.sync()).sent == ()
    for name in ODD_NAMES:
        (desk.project / os.fsdecode(name)).unlink()
    removed = (await desk.sync()).removed
    assert {os.fsencode(name) for name in removed} == set(ODD_NAMES)
    assert not list(desk.server.home.rglob("injected"))
    assert b"\x1b" not in desk.step_output


@pytest.mark.row(72)
async def test_links_that_lead_out_are_named_and_not_sent(desk: Desk) -> None:
    outside = desk.project.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    desk.write("sub/a.py")
    links = {
        "inside": "sub/a.py",
        "sub/up": "../sub/a.py",
        "folder": "sub",
        "absolute": str(outside),
        "relative": "../outside/secret",
        "sub/far": "../../outside",
        "root": "/",
    }
    for name, target in links.items():
        (desk.project / name).symlink_to(target)
    result = await desk.sync()
    assert desk.names() == {"sub", "sub/a.py", "inside", "sub/up", "folder"}
    assert (desk.copy / "sub" / "up").readlink().as_posix() == "../sub/a.py"
    assert {name for name, why in result.skipped if "points outside" in why} == {
        "absolute",
        "relative",
        "sub/far",
        "root",
    }
    assert "not sent: root is a link that points outside the project" in desk.notices


@pytest.mark.row(73)
async def test_special_files_are_named_and_do_no_harm(desk: Desk) -> None:
    desk.write("a.py")
    os.mkfifo(desk.project / "pipe")
    (desk.project / "dangling").symlink_to("nowhere")
    (desk.project / "loop").symlink_to("loop")
    (desk.project / "circle").symlink_to(".")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(desk.project / "socket"))
        result = await desk.sync()
    assert desk.names() == {"a.py", "dangling", "loop", "circle"}
    assert {name for name, _ in result.skipped} == {"pipe", "socket"}
    assert (await desk.sync()).sent == ()


@pytest.mark.row(80)
async def test_setuid_and_owner_do_not_arrive(desk: Desk) -> None:
    path = desk.write("tool")
    path.chmod(0o6755)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        path.chmod(0o6755)
    await desk.sync()
    arrived = (desk.copy / "tool").stat()
    assert stat.S_IMODE(arrived.st_mode) == 0o755
    assert (arrived.st_uid, arrived.st_gid) == (os.geteuid(), os.getegid())
    assert (await desk.sync()).sent == ()
