"""ssh-config: the settings of our logins as ``Host`` blocks, for ssh and the programs that use it.

``--install`` writes them into a file of their own, which ``~/.ssh/config`` includes.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectError, UsageError
from remote_tool.system.files import read_bounded, replacing
from remote_tool.system.locks import lock, unlock
from remote_tool.transport.kept.start import UnsuitableError, config_line
from remote_tool.transport.pool import Results, on_every
from remote_tool.transport.ssh.host_keys.known_hosts import lookup_names
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import choose_logins

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.config.model import Config
    from remote_tool.transport.ssh.endpoint import Endpoint
    from remote_tool.workflows.context import Context


FOLDER = "remote-tool"
# Relative to ~/.ssh; one line serves all projects.
INCLUDE = f"Include {FOLDER}/*.conf\n"
OWNER = "# Written by remote-tool ssh-config --install for "
LARGEST = 1024 * 1024
LOCK_SECONDS = 5.0
_NEXT_SECTION = re.compile(rb"^[ \t]*(?:host|match)\b", re.IGNORECASE | re.MULTILINE)
_INCLUDE_LINE = re.compile(rb"^" + re.escape(INCLUDE.encode()) + rb"\n?", re.MULTILINE)


async def host_blocks(context: Context, servers: Sequence[str]) -> Results[str]:
    """Return the ``Host`` block of each server, after the blocks of its jump hosts; connects to none.

    Raises:
        UsageError: A server is unknown.
    """
    known_hosts = context.config.local.known_hosts

    async def write(server: str) -> str:
        way = await context.pool.endpoints(server)
        for key in dict.fromkeys(endpoint.identity.private_key for endpoint in way):
            if key is not None and not _exists(key):
                context.report(Notice(server, f"its private_key {key} does not exist, so no key is named"))
        try:
            return "".join(f"{line}\n" for line in _blocks(way, known_hosts))
        except UnsuitableError as problem:
            message = f"{server}: ssh_config cannot represent {str(problem)!r:.200}"
            raise ConnectError(message, server=server) from None

    return await on_every(choose_logins(context.config, servers), write)


def _blocks(way: Sequence[Endpoint], known_hosts: Path) -> Iterator[str]:
    server = way[-1].server
    names = [*(f"{server}-jump{number}" for number in range(1, len(way))), server]
    for number, (name, endpoint) in enumerate(zip(names, way, strict=True)):
        if endpoint.has_proxy_command:
            raise ConnectError(
                f"{server}: {endpoint.alias} has a ProxyCommand in ~/.ssh/config, which is not copied",
                hint=f"Add {server} to the Host line of {endpoint.alias} there",
                server=server,
            )
        yield f"Host {name}"
        for line in _settings(endpoint, known_hosts):
            yield f"    {line}"
        if number:
            yield f"    {config_line('ProxyJump', names[number - 1])}"


def _settings(endpoint: Endpoint, known_hosts: Path) -> Iterator[str]:
    identity, trust = endpoint.identity, endpoint.trust
    yield config_line("HostName", endpoint.host)
    yield config_line("Port", str(endpoint.port))
    yield config_line("User", endpoint.username)
    # ssh saves new keys in the first file, so that is not ours.
    yield config_line("UserKnownHostsFile", *dict.fromkeys(map(str, (*trust.files, known_hosts))))
    if trust.names != lookup_names(endpoint.host, endpoint.port):
        yield config_line("HostKeyAlias", trust.names[0])
    files = identity.files if identity.private_key is None else (identity.private_key,)
    found = [*filter(_exists, files)]
    for file in found:
        yield config_line("IdentityFile", str(file))
    if found if identity.private_key is not None else identity.files_only:
        yield config_line("IdentitiesOnly", "yes")


def _exists(file: Path) -> bool:
    """Return whether ssh finds a key file, or its public half, whose key an agent may have."""
    return any(each.exists() for each in (file, file.with_name(f"{file.name}.pub")))


def installed_file(config: Config) -> Path:
    """Return the path of the file with the blocks of a project."""
    return _ssh_folder() / FOLDER / f"{config.name.replace('/', '-')}.conf"


def install(config: Config, blocks: Sequence[str]) -> None:
    """Write the blocks, and include them at the start of ``~/.ssh/config``, as ssh uses the first value of an option.

    Raises:
        UsageError: A file cannot be written, or belongs to another project.
    """
    file = installed_file(config)
    with _write_errors(), _locked(file.parent):
        _refuse_foreign(config, file)
        with replacing(file) as written:
            written.write(os.fsencode(_owner_line(config) + "\n\n" + "\n".join(blocks)))
        before = _read(_user_config())
        if _find_include(before) is None:
            _rewrite(_user_config(), INCLUDE.encode() + (b"\n" if before else b"") + before)


def remove(config: Config) -> bool:
    """Remove the blocks of a project, and the line in ``~/.ssh/config`` if no project has blocks any longer.

    Raises:
        UsageError: A file cannot be written, or belongs to another project.
    """
    file = installed_file(config)
    if not file.parent.is_dir():
        return False
    with _write_errors(), _locked(file.parent):
        _refuse_foreign(config, file)
        had_file = file.exists()
        file.unlink(missing_ok=True)
        if any(file.parent.glob("*.conf")):
            return had_file
        before = _read(_user_config())
        line = _find_include(before)
        if line is not None:
            _rewrite(_user_config(), before[: line.start()] + before[line.end() :])
        # Another program may have a file in the folder.
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
    return had_file or line is not None


def _find_include(content: bytes) -> re.Match[bytes] | None:
    """Return our line if it applies to every host: it is before the first block."""
    section = _NEXT_SECTION.search(content)
    return _INCLUDE_LINE.search(content, 0, section.start() if section else len(content))


def _rewrite(file: Path, content: bytes) -> None:
    """Replace a file, also behind a link, and keep its permissions; remove it if it would be empty."""
    target = file.resolve()
    if not content and not file.is_symlink():
        target.unlink(missing_ok=True)
        return
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
    with replacing(target, mode=mode) as written:
        written.write(content)


def _read(file: Path) -> bytes:
    try:
        return read_bounded(file.resolve(), LARGEST)[0]
    except FileNotFoundError:
        return b""
    except ValueError as error:
        raise UsageError(f"{file} cannot be changed: {error}", hint=f"ls -l {file}") from None


def _refuse_foreign(config: Config, file: Path) -> None:
    owner = os.fsdecode(_read(file).partition(b"\n")[0])
    if owner and owner != _owner_line(config):
        reason = (
            f"belongs to {owner.removeprefix(OWNER)}" if owner.startswith(OWNER) else "was not written by remote-tool"
        )
        raise UsageError(
            f"{file} {reason}", hint=f"rm {file}, or give one of the projects another name: in configs.yaml"
        )


def _owner_line(config: Config) -> str:
    # This form has no line breaks, even if the name of the folder has one.
    return f"{OWNER}{str(config.local.root)!a}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock(descriptor, seconds=LOCK_SECONDS)
        yield
    finally:
        unlock(descriptor)


@contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = error.filename or _user_config()
        raise UsageError(f"{name} cannot be changed: {error.strerror or error}", hint=f"ls -ld {name}") from error


def _ssh_folder() -> Path:
    return Path.home() / ".ssh"


def _user_config() -> Path:
    return _ssh_folder() / "config"
