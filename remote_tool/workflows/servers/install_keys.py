"""keys: install the user's key on every server, with one password prompt, and verify it with a login."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import LoginError, RemoteToolError, UsageError
from remote_tool.transport.pool import Results, on_every
from remote_tool.transport.ssh.endpoint import AuthMethods
from remote_tool.transport.ssh.user_keys import UserKey, add_key, find_key, make_key, writable_by_others
from remote_tool.workflows.events import Notice, StepStarted
from remote_tool.workflows.selection import choose_logins

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.transport.host import Host
    from remote_tool.workflows.context import Context

STEP = "key"
SSHD_HINT = (
    "On the server: sudo sshd -T | grep -iE 'pubkeyauthentication|authorizedkeysfile|strictmodes'; "
    "with SELinux: restorecon -R ~/.ssh"
)


class KeyState(StrEnum):
    """The result on a server."""

    WORKS = "works"
    ADDED = "added"
    MISSING = "missing"


@dataclass(frozen=True)
class KeyOnServer:
    """The user's key on one server.

    Attributes:
        state: ``works``: it worked already; ``added``: it works now; ``missing``: it does not (``--dry-run``).
        key: The local file of the private key; empty for a key in an agent.
        line: The public key, as one line; empty without a key.
        file: The server's file to which the line was added, or empty.
    """

    state: KeyState
    key: str
    line: str
    file: str = ""

    @property
    def changed(self) -> bool:
        return self.state is KeyState.ADDED


@dataclass(frozen=True)
class KeysRequest:
    """The options of ``keys``.

    Attributes:
        servers: Names; empty means all.
        passphrase: Whether to prompt for a passphrase for a new key.
        dry_run: Whether to change nothing.
    """

    servers: tuple[str, ...] = ()
    passphrase: bool = False
    dry_run: bool = False


async def install_keys(context: Context, request: KeysRequest) -> Results[KeyOnServer]:
    """Find the servers that accept no key; create a missing key, add it there, and verify the logins.

    Raises:
        UsageError: A key cannot be created.
    """
    servers = choose_logins(context.config, request.servers)
    found = await on_every(servers, lambda server: _inspect(context, server))
    missing = {server: key for server, key in found.values.items() if key.state is KeyState.MISSING}
    if request.dry_run or not missing:
        return found
    refused = await context.pool.confirm_host_keys(missing)
    trusted = {server: key for server, key in missing.items() if server not in refused}
    lines = await _make_keys(context, trusted.values(), ask_passphrase=request.passphrase)
    installed_keys: set[str] = set()

    async def install(server: str) -> KeyOnServer:
        installed = await _install(context, server, trusted[server], lines)
        installed_keys.add(installed.key)
        return installed

    try:
        await context.pool.expect_common_password(trusted)
        added = await on_every(trusted, install)
    finally:
        for key in dict.fromkeys(
            each.key for each in trusted.values() if not each.line and each.key not in installed_keys
        ):
            names = shlex.join([key, f"{key}.pub"])
            context.report(Notice("", f"no server accepted the new key {key}; to remove it: rm {names}"))
    return _in_order(servers, {**found.values, **added.values}, {**found.errors, **refused, **added.errors})


def _in_order(
    servers: Sequence[str], values: Mapping[str, KeyOnServer], errors: Mapping[str, RemoteToolError]
) -> Results[KeyOnServer]:
    return Results(
        {server: values[server] for server in servers if server in values and server not in errors},
        {server: errors[server] for server in servers if server in errors},
    )


async def _inspect(context: Context, server: str) -> KeyOnServer:
    """Return the key to use, and whether the server accepts it."""
    context.report(StepStarted(server, STEP))
    key = await find_key(context.config.servers[server])
    name = str(key.path or "")
    try:
        async with context.pool.login(server, AuthMethods.KEYS):
            return KeyOnServer(KeyState.WORKS, name, key.line)
    except LoginError:
        return KeyOnServer(KeyState.MISSING, name, key.line)


async def _make_keys(context: Context, keys: Iterable[KeyOnServer], *, ask_passphrase: bool) -> dict[str, str]:
    """Create missing keys; return the public line of every key by its file."""
    lines = {key.key: key.line for key in keys}
    for name in [name for name, line in lines.items() if not line]:
        passphrase = await _new_passphrase(context, name) if ask_passphrase else None
        lines[name] = await asyncio.to_thread(make_key, Path(name), passphrase)
        if passphrase:
            context.pool.remember_passphrase(Path(name), passphrase)
        context.report(Notice("", f"created {name} and {name}.pub"))
    return lines


async def _new_passphrase(context: Context, name: str) -> str:
    if not context.pool.prompter.can_ask:
        raise UsageError("--passphrase needs a terminal", hint=f"set it later: ssh-keygen -p -f {name}")
    passphrase = await context.pool.prompter.ask(f"New passphrase of {name}: ")
    if not passphrase:
        raise UsageError(
            "No passphrase was entered; no key was created",
            hint="Leave out --passphrase to create a key without one",
        )
    if await context.pool.prompter.ask("Repeat the passphrase: ") != passphrase:
        raise UsageError("The passphrases do not match; no key was created")
    return passphrase


async def _install(context: Context, server: str, key: KeyOnServer, lines: Mapping[str, str]) -> KeyOnServer:
    line = lines[key.key]
    async with context.pool.login(server, AuthMethods.PASSWORDS) as host:
        file = await add_key(host, line)
        await _verify(context, host, UserKey(Path(key.key) if key.key else None, line), file)
    return KeyOnServer(KeyState.ADDED, key.key, line, file)


async def _verify(context: Context, host: Host, key: UserKey, file: str) -> None:
    """Log in with the key alone.

    Raises:
        LoginError: The server rejects it; the message has the reason, if it is known.
    """
    try:
        async with context.pool.login(host.name, AuthMethods.KEYS, key.path):
            return
    except LoginError as error:
        refused = error
    open_paths = await writable_by_others(host)
    problem = f"{host.name}: the key is in {file}, but logging in with it fails"
    if open_paths:
        paths = " ".join(open_paths)
        raise LoginError(
            f"{problem}: other users may write to {paths}, so sshd ignores the keys there (StrictModes)",
            hint=f"On {host.name}: chmod go-w {paths}",
            server=host.name,
        )
    raise LoginError(f"{problem}: {refused.message}", hint=SSHD_HINT, server=host.name)
