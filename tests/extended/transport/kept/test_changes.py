"""What changes on the server while a login to it is kept."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import HostKeyError, LoginError
from remote_tool.transport.kept.listing import end_kept
from remote_tool.transport.pool import HostPool
from tests.extended.transport.channels import until
from tests.extended.transport.test_kept import keep
from tests.sshd import make_key

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from tests.sshd import TestServer

NOBODY = 65534
pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


@pytest.mark.row(197)
async def test_a_server_that_has_another_key_after_a_reboot_is_refused(config: Config, server: TestServer) -> None:
    _, record = await keep(config)
    server.stop()
    for file in server.folder.glob("host_key*"):
        file.unlink()
    make_key(server.host_key)
    server.start()
    assert await until(lambda: not record.socket.exists())
    for _ in range(2):
        async with HostPool(config) as pool:
            with pytest.raises(HostKeyError, match="has changed"):
                await (await pool.host("first")).run("touch $HOME/ran")
    assert not (server.home / "ran").exists()


@pytest.mark.row(200)
async def test_a_kept_login_outlasts_the_removal_of_its_key_until_disconnect(
    config: Config, server: TestServer
) -> None:
    place, record = await keep(config)
    (server.folder / "authorized_keys").write_text("")
    async with HostPool(config) as pool:
        assert (await (await pool.host("first")).run("echo in")).stdout == b"in\n"
    await end_kept(place, record)
    async with HostPool(config) as pool:
        with pytest.raises(LoginError):
            await pool.host("first")


OTHER_USER = """
import os, socket, sys
user = int(sys.argv[2])
if user != os.getuid():
    os.setgroups([]); os.setgid(user); os.setuid(user)
speaker = socket.socket(socket.AF_UNIX)
speaker.settimeout(300)
try:
    speaker.connect(sys.argv[1])
    speaker.sendall(bytes.fromhex("000000080000000100000004"))
    print("an answer" if speaker.recv(4096) else "nothing")
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.row(197)
async def test_another_user_gets_no_answer_at_the_socket(config: Config) -> None:
    """The folder keeps others out; without it, the master does."""
    place, record = await keep(config)
    folders = (place.path, *place.path.parents[:2])

    async def says(user: int) -> str:
        words = [sys.executable, "-c", OTHER_USER, str(record.socket), str(user)]
        ran = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=True, timeout=300)
        return str(ran.stdout)

    assert await says(os.getuid()) == "an answer\n"
    assert await says(NOBODY) == "Permission denied\n"
    try:
        for folder in folders:
            folder.chmod(0o755)
        record.socket.chmod(0o666)
        assert await says(NOBODY) != "an answer\n"
    finally:
        for folder in folders:
            folder.chmod(0o700)
