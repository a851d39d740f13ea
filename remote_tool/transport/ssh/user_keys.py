"""The user's own key for a server: find its file or create it, and add it to ``authorized_keys`` there."""

from __future__ import annotations

import asyncio
import getpass
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import LoginError, RemoteCommandError, UsageError
from remote_tool.system.files import replacing
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.transport.ssh.key_files import (
    MISSING,
    new_key_pair,
    problem_of_key_file,
    public_key_of,
    public_key_of_agent,
)
from remote_tool.transport.ssh.ssh_config import resolve_endpoints

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.servers import Server
    from remote_tool.transport.host import Host
    from remote_tool.transport.ssh.host_keys.entries import HostKey


MAX_OUTPUT_BYTES = 64 * 1024

# The public line comes on stdin. A link is kept, as by ssh-copy-id; a plain file is replaced by a new one, which is
# also the lock: two servers may share a home.
_ADD = r"""
umask 077
IFS= read -r line || exit
cd "$HOME" || exit
mkdir -p .ssh && chmod 700 .ssh || exit
file=.ssh/authorized_keys
new=.ssh/.authorized_keys.remote-tool
fail() { echo "$*" >&2; exit 1; }
[ -w .ssh ] || fail "$HOME/.ssh is not writable"
[ ! -d "$file" ] || fail "$HOME/$file is a folder"
[ ! -e "$file" ] || [ -w "$file" ] || fail "$HOME/$file is not writable"
tries=0
until (set -C; : > "$new") 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -le 100 ] || fail "$HOME/$new cannot be created: another program is writing there, or the disk is full"
    [ -z "$(find "$new" -mmin +1 2>/dev/null)" ] || rm -f "$new"
    sleep 0.1 2>/dev/null || sleep 1
done
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT PIPE TERM

add_to() {
    # The last line may lack its line break.
    [ ! -s "$1" ] || [ -z "$(tail -c 1 "$1")" ] || echo >> "$1" || return
    printf '%s\n' "$line" >> "$1"
}
blob=${line#* }
blob=${blob%% *}
if [ -e "$file" ] && grep -v '^[[:space:]]*#' "$file" | grep -qF -- "$blob"; then
    echo present
elif [ -L "$file" ]; then
    add_to "$file" || exit
    echo added
else
    [ ! -e "$file" ] || cat "$file" > "$new" || exit
    add_to "$new" && chmod 600 "$new" && mv -f "$new" "$file" || exit
    trap - EXIT
    if command -v restorecon > /dev/null; then restorecon -F .ssh "$file" > /dev/null 2>&1; fi
    echo added
fi
printf '%s\n' "$PWD/$file"
"""

# Prints the paths that others may write to: sshd rejects keys from there (StrictModes).
_LIST_WRITABLE = r"""
for path in "$HOME" "$HOME/.ssh" "$HOME/.ssh/authorized_keys"; do
    [ -z "$(find -L "$path" -prune \( -perm -020 -o -perm -002 \) 2>/dev/null)" ] || printf '%s\n' "$path"
done
"""


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
    """Return the configured key, else the first that ssh would use, else one of the agent, else a path for a new key.

    Raises:
        LoginError: The key's file cannot be used.
        ConnectError: ``~/.ssh/config`` cannot be used.
    """
    *_, endpoint = await asyncio.to_thread(resolve_endpoints, server)
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
        # A public file without its private half may be the key of another machine.
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


async def add_key(host: Host, line: str) -> str:
    """Add a public key if missing, and return the path of ``authorized_keys``; other lines are unchanged.

    Raises:
        RemoteCommandError: It could not be written.
        ConnectionLostError: The connection was lost; whether the key was added is unknown.
    """
    label = "add the public key"
    answer = await host.run(_ADD, stdin=line.encode() + b"\n", limit=MAX_OUTPUT_BYTES, label=label)
    result, _, file = answer.stdout.decode(errors="replace").strip().partition("\n")
    if result not in {"added", "present"}:
        message = f"{host.name}: {label}: unexpected answer: {printable(result)[:100]!r}"
        raise RemoteCommandError(message, server=host.name, command=label, exit_status=0)
    return printable(file)


async def writable_by_others(host: Host) -> list[str]:
    """Return the parents of ``authorized_keys``, and the file itself, that other users may write to."""
    answer = await host.run(
        _LIST_WRITABLE, limit=MAX_OUTPUT_BYTES, check=False, label="check the permissions of ~/.ssh"
    )
    return [printable(path) for path in answer.stdout.decode(errors="replace").splitlines()]


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
    """Return the comment in the key's public file, or a usual one."""
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
