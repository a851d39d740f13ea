"""The user's own key for a server: find its file, or create it."""

from __future__ import annotations

import asyncio
import getpass
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import LoginError, UsageError
from remote_tool.system.files import replacing
from remote_tool.transport.ssh.key_files import (
    MISSING,
    new_key_pair,
    problem_of_key_file,
    public_key_of,
    public_key_of_agent,
)
from remote_tool.transport.ssh.ssh_config import resolve_way

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.servers import Server
    from remote_tool.transport.ssh.host_keys.entries import HostKey


@dataclass(frozen=True)
class UserKey:
    """A key for the user's login.

    Attributes:
        path: Its private file; None if only the ssh agent has it.
        line: Its line for ``authorized_keys``; empty if there is no such key yet.
    """

    path: Path | None
    line: str


async def find_key(server: Server) -> UserKey:
    """Return the configured key, else the first one ssh would use, else one of the agent, else a path for a new one.

    Raises:
        LoginError: The key's file cannot be used.
        ConnectError: ``~/.ssh/config`` cannot be used.
    """
    *_, endpoint = await asyncio.to_thread(resolve_way, server)
    identity = endpoint.identity
    # A hardware key requires a touch.
    usual = [path for path in identity.files if not path.name.endswith("_sk")]
    paths = usual if identity.private_key is None else [identity.private_key]
    for path in paths:
        if path.exists():
            return await asyncio.to_thread(_read_key, server, path)
    if identity.private_key is None and identity.agent:
        key = await public_key_of_agent(identity.agent)
        if key is not None:
            return UserKey(None, f"{key.text} {_owner()}")
    return UserKey(paths[0], "")


def make_key(path: Path, passphrase: str | None) -> str:
    """Create an ed25519 key atomically, the private file 0600, with ``.pub`` beside it; return its public line.

    Raises:
        UsageError: A file exists already, or cannot be written.
    """
    private, public = new_key_pair(_owner(), passphrase)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Without the private half, it may be another machine's.
        _write_new(_public_file(path), public, 0o644)
        try:
            _write_new(path, private, 0o600)
        except BaseException:
            _public_file(path).unlink()
            raise
    except FileExistsError as error:
        raise UsageError(f"{error.filename2} already exists and was not overwritten") from None
    except OSError as error:
        raise UsageError(f"Cannot create the key {path}: {error.strerror}") from None
    return public.decode().strip()


def _read_key(server: Server, path: Path) -> UserKey:
    problem = problem_of_key_file(path)
    if problem and problem != MISSING:
        raise LoginError(f"{server.name}: the private key {path} {problem[0]}", hint=problem[1], server=server.name)
    key = public_key_of(path)
    if key is None:
        quoted = shlex.quote(str(path))
        raise LoginError(
            f"{server.name}: cannot read the public key of {path}",
            hint=f"ssh-keygen -y -f {quoted} > {quoted}.pub",
            server=server.name,
        )
    return UserKey(path, f"{key.text} {_comment(path, key)}")


def _comment(path: Path, key: HostKey) -> str:
    """Return the key's comment."""
    with suppress(OSError, ValueError):
        kind, blob, comment = _public_file(path).read_text().split(maxsplit=2)
        if f"{kind} {blob}" == key.text and comment.strip().isprintable():
            return comment.strip()
    return _owner()


def _owner() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _public_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a new file; FileExistsError if it exists."""
    with replacing(path, mode=mode, overwrite=False) as file:
        file.write(data)
