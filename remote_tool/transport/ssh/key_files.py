"""Private key files and their public halves: load, check and create them."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.system.files import opened_plain
from remote_tool.transport.ssh import login_errors
from remote_tool.transport.ssh.host_keys.entries import HostKey
from remote_tool.transport.ssh.library import asyncssh

if TYPE_CHECKING:
    from pathlib import Path

MISSING = ("does not exist", "Check private_key: in .remote/configs.yaml")


class LockedKeyError(ValueError):
    """A key file needs a passphrase."""


def load_key_file(path: Path, passphrase: str | None = None) -> list[asyncssh.SSHKeyPair]:
    try:
        return list(asyncssh.load_keypairs(str(path), passphrase))
    except asyncssh.KeyImportError as error:
        if passphrase is None and str(error).startswith("Passphrase"):
            raise LockedKeyError(str(error)) from None
        raise


def make_private(path: Path) -> bool:
    """Make a key file private, as ssh requires; return whether its permissions have changed."""
    with suppress(OSError):
        if _is_accessible_to_others(path.stat()):
            path.chmod(0o600)
            # Nothing changes on a file system without permissions, such as a Windows drive.
            return not _is_accessible_to_others(path.stat())
    return False


def _is_accessible_to_others(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and bool(status.st_mode & 0o077)


def problem_of_key_file(path: Path) -> tuple[str, str] | None:
    """Return why ssh would reject a key file, and the remedy."""
    try:
        status = path.stat()
        with opened_plain(path):
            pass
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read: {error.strerror}", f"ls -l {shlex.quote(str(path))}"
    if _is_accessible_to_others(status):
        mode = stat.S_IMODE(status.st_mode)
        return f"is accessible to other users (mode {mode:04o}) and is not used", f"chmod 600 {shlex.quote(str(path))}"
    return None


def new_key_pair(comment: str, passphrase: str | None) -> tuple[bytes, bytes]:
    """Create an ed25519 key; return its private file and its public line."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    # As in ssh-keygen; each login takes the time of these rounds.
    private = key.export_private_key(
        "openssh", passphrase or None, cipher_name="aes256-ctr", rounds=24, ignore_few_rounds=True
    )
    return private, key.export_public_key("openssh")


def public_key_of(path: Path) -> HostKey | None:
    """Return the public half of a key file, without its passphrase; None if unreadable."""
    key = _public_half(path)
    return None if key is None else host_key_of(key)


async def public_key_of_agent(path: str) -> HostKey | None:
    """Return the public half of the ssh agent's first key; None without one."""
    try:
        async with asyncio.timeout(login_errors.CONNECT_SECONDS), asyncssh.connect_agent(path) as agent:
            keys = await agent.get_keys()
    except (OSError, ValueError, asyncssh.Error):
        return None
    return next((HostKey(key.get_algorithm(), key.public_data) for key in keys if not key.has_cert), None)


def host_key_of(key: asyncssh.SSHKey) -> HostKey:
    return HostKey(key.get_algorithm(), key.public_data)


def public_data(path: Path) -> bytes | None:
    """Return the bytes of the public half of a key file, without its passphrase; None if unreadable."""
    key = _public_half(path)
    return None if key is None else key.public_data


def _public_half(path: Path) -> asyncssh.SSHKey | None:
    for candidate in (path, path.with_name(path.name + ".pub")):
        with suppress(OSError, ValueError), opened_plain(candidate):
            return asyncssh.read_public_key(str(candidate))
    return None


def key_name(algorithm: str) -> str:
    """Return the type of a key as in ``ssh-keygen -t``: ``rsa-sha2-512`` is ``rsa``."""
    plain, is_certificate, _ = algorithm.partition("-cert-v01")
    security_key = plain.startswith("sk-")
    words = plain.partition("@")[0].removeprefix("sk-").removeprefix("ssh-").split("-")
    return words[0] + ("-sk" if security_key else "") + (" certificate" if is_certificate else " key")
