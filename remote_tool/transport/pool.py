"""The connections of a command, and actions on several servers in parallel."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from remote_tool.errors import RemoteToolError, SomeServersFailedError, UsageError
from remote_tool.transport.connection_cache import ConnectionCache
from remote_tool.transport.prompter import Prompter
from remote_tool.transport.ssh.context import ConnectionContext
from remote_tool.transport.ssh.host_keys.rules import HostKeyRules
from remote_tool.transport.ssh.passwords import CommonPasswords

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    from remote_tool.config.model import Config
    from remote_tool.config.servers import Server
    from remote_tool.errors import HostKeyError
    from remote_tool.transport.host import Host
    from remote_tool.transport.kept.connection import UsableLogin
    from remote_tool.transport.ssh.connection import Connection
    from remote_tool.transport.ssh.endpoint import AuthMethods, Endpoint
    from remote_tool.transport.ssh.host import SshHost

T = TypeVar("T")
SILENT_SECONDS = 5.0


class HostPool:
    """Connects to each server once, when first used, and closes all connections at the end.

    Args:
        config: Has the servers.
        report: Called with notices about a server: ``report(server, text)``.
        trace: Called for each remote command: ``trace(server, label, seconds)``.
        ask_password: Prompts for a secret; None without a terminal.
        confirm: Asks whether to trust new host keys; None without a terminal.
        adopt: Asks whether to share a folder that another workspace has sent; None without a terminal.
        allow: Asks whether servers may reach a host through this machine; None without a terminal.
    """

    def __init__(  # noqa: PLR0913 - one parameter per callback
        self,
        config: Config,
        *,
        report: Callable[[str, str], None] | None = None,
        trace: Callable[[str, str, float], None] | None = None,
        ask_password: Callable[[str], str | None] | None = None,
        confirm: Callable[[str], bool] | None = None,
        adopt: Callable[[str], bool] | None = None,
        allow: Callable[[str], bool] | None = None,
    ) -> None:
        self._config = config
        self._report = report or _ignore_notice
        # The caller reports the silence of these servers.
        self.watched: set[str] = set()
        self.prompter = Prompter(ask_password, confirm, adopt, allow)
        self._context = ConnectionContext(
            rules=HostKeyRules(
                config.local.known_hosts,
                config.host_keys,
                self._report,
                self.prompter,
                {name: server.hostname for name, server in config.servers.items()},
            ),
            prompter=self.prompter,
            trace=trace or _ignore_trace,
            common_passwords=CommonPasswords(self.prompter),
        )
        self._hosts: ConnectionCache[str, SshHost] = ConnectionCache()
        self._logins: dict[str, Connection] = {}
        self._loading: asyncio.Task[ModuleType] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def host(self, name: str, *, logs_in: bool = False) -> Host:
        """Return a connected server; connects at first use and after a lost connection.

        Args:
            name: The server's name.
            logs_in: Whether to log in even if a login is kept.

        Raises:
            ConnectError: Not connected; a refused login or host key is not retried.
        """
        return await self._hosts.get(name, lambda: self._connect(name, may_use_kept=not logs_in))

    @asynccontextmanager
    async def login(self, name: str, methods: AuthMethods, private_key: Path | None = None) -> AsyncIterator[Host]:
        """Log in separately, with only keys or only passwords, and close the connection at the end.

        A private key takes the place of the usual ones.

        Raises:
            ConnectError: Not connected; LoginError if access was denied.
        """
        server = self._server(name)
        server = replace(server, private_key=private_key) if private_key else server
        with self._reporting_silence(name):
            host: SshHost = await (await self._ssh()).connect(server, self._context, methods)
        try:
            yield host
        finally:
            await host.close()

    async def confirm_host_keys(self, names: Iterable[str]) -> Mapping[str, HostKeyError]:
        """Ask one question about all new host keys of servers that may be sent a password next.

        Returns:
            The error of each server whose key was not confirmed.
        """
        return await self._context.rules.confirm_stored(names)

    async def expect_common_password(self, names: Iterable[str]) -> None:
        """Let all these servers with the same user name share one question for the password, unless it is configured.

        Raises:
            ConnectError: ``~/.ssh/config`` cannot be used.
        """
        for name in names:
            endpoint = (await self.endpoints(name))[-1]
            if endpoint.identity.configured_password() is None:
                self._context.common_passwords.expect(endpoint.username, name)

    async def endpoints(self, name: str) -> list[Endpoint]:
        """Return the jump hosts of a server, nearest first, then the server itself.

        Raises:
            ConnectError: ``~/.ssh/config`` cannot be used.
        """
        ssh = await self._ssh()
        endpoints: list[Endpoint] = await asyncio.to_thread(ssh.resolve_endpoints, self._server(name))
        return endpoints

    def remember_passphrase(self, path: Path, passphrase: str) -> None:
        """Store the passphrase of a key file, so that it is not asked for."""
        self._context.passphrases.remember(path, passphrase)

    async def close(self) -> None:
        """Keep logins if configured, and close every connection, with a timeout for servers that do not answer."""
        hosts = await self._hosts.drain()
        # The masters start before the connections close.
        keeping = (self._keep(name, connection) for name, connection in self._logins.items())
        await asyncio.gather(*keeping, *(host.close() for host in hosts))
        await asyncio.gather(*(jump.close() for jump in await self._context.jumps.drain()))

    async def _connect(self, name: str, *, may_use_kept: bool) -> SshHost:
        server, log_in = self._server(name), partial(self._log_in, name)
        if server.localhost:
            return self._this_machine(name)
        may_use_kept = may_use_kept and self._config.keep_connections > 0
        if may_use_kept and (kept := await asyncio.to_thread(self._find_kept, name)):
            return kept.host(log_in, self._context)
        connection, make_host = await log_in(), (await self._ssh()).SshHost
        host: SshHost = make_host(server.name, connection, self._context.trace, self._context.rules.notice)
        return host

    def _this_machine(self, name: str) -> SshHost:
        from remote_tool.config.servers import refuse_other_systems  # noqa: PLC0415 - seldom needed
        from remote_tool.transport.local.connection import LocalConnection  # noqa: PLC0415
        from remote_tool.transport.ssh.host import SshHost  # noqa: PLC0415

        refuse_other_systems(name)
        return SshHost(name, LocalConnection(name), self._context.trace, self._context.rules.notice)

    def _find_kept(self, name: str) -> UsableLogin | None:
        from remote_tool.transport.kept.connection import find_kept  # noqa: PLC0415 - seldom needed

        return find_kept(self._config, name)

    async def _log_in(self, name: str) -> Connection:
        with self._reporting_silence(name):
            connection: Connection = await (await self._ssh()).log_in_to(self._server(name), self._context)
        self._logins[name] = connection
        return connection

    @contextmanager
    def announcing(self, name: str, text: str) -> Iterator[None]:
        """Report once what a server is busy with, if that takes more than a few seconds."""
        later = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._report, name, text)
        try:
            yield
        finally:
            later.cancel()

    @contextmanager
    def _reporting_silence(self, name: str) -> Iterator[None]:
        """Report a slow login, not counting the time in which the user is prompted."""

        async def report() -> None:
            await asyncio.sleep(SILENT_SECONDS)
            while self.prompter.is_asking:  # noqa: ASYNC110 - the user's time
                await asyncio.sleep(SILENT_SECONDS)
            if name not in self.watched:
                self._report(name, f"no answer for {SILENT_SECONDS:.0f} s")

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()

    async def _keep(self, name: str, connection: Connection) -> None:
        """Start a master that keeps a login for the next command.

        This happens at the end, so that the start does not slow this command down.
        """
        seconds, local = self._config.keep_connections, self._config.local
        if not (seconds and connection.alive):
            return
        from remote_tool.transport.kept.folder import kept_folder  # noqa: PLC0415 - seldom needed
        from remote_tool.transport.kept.start import LoginToKeep, start_master  # noqa: PLC0415

        if folder := kept_folder(self._config, name):
            login = LoginToKeep(connection.hops, connection.login, local.root, local.known_hosts, seconds)
            await asyncio.to_thread(start_master, folder, login)

    async def _ssh(self) -> ModuleType:
        """Import the modules with asyncssh once, in the background: the import takes a third of a short command."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_load_ssh))
        return await asyncio.shield(self._loading)

    def _server(self, name: str) -> Server:
        server = self._config.servers.get(name)
        if server is None:
            known = ", ".join(self._config.servers)
            raise UsageError(f"Unknown server {name!r}", hint=f"The servers are: {known}")
        return server


@dataclass
class Results(Generic[T]):
    """The values of some servers, and the errors of the others."""

    values: dict[str, T] = field(default_factory=dict)
    errors: dict[str, RemoteToolError] = field(default_factory=dict)

    def raise_if_any_failed(self) -> None:
        """Raise the errors.

        Raises:
            RemoteToolError: The error itself if only one server was asked.
            SomeServersFailedError: Several were asked.
        """
        if not self.errors:
            return
        if len(self.errors) + len(self.values) == 1:
            raise next(iter(self.errors.values()))
        raise SomeServersFailedError(self.errors, list(self.values))


async def on_every(names: Iterable[str], action: Callable[[str], Awaitable[T]]) -> Results[T]:
    """Run an action on all servers in parallel; an error ends its server's action only, a bug all of them."""
    names = list(dict.fromkeys(names))
    values: dict[str, T] = {}
    errors: dict[str, RemoteToolError] = {}

    async def run_on(name: str) -> None:
        try:
            values[name] = await action(name)
        except RemoteToolError as error:
            errors[name] = error

    try:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(run_on(name), name=name)
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None
    return Results(
        {name: values[name] for name in names if name in values},
        {name: errors[name] for name in names if name in errors},
    )


def _load_ssh() -> ModuleType:
    from remote_tool.transport.ssh import log_in  # noqa: PLC0415 - see HostPool._ssh

    return log_in


def _ignore_notice(server: str, text: str) -> None:
    """Ignore a notice."""


def _ignore_trace(server: str, label: str, seconds: float) -> None:
    """Ignore a trace."""
