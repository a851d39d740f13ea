"""A server behind one SSH connection; the only module that knows asyncssh."""

from __future__ import annotations

import asyncio
import errno
import getpass
import os
import random
import re
import shlex
import signal
import socket
import stat
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import asyncssh
from asyncssh.config import SSHClientConfig

from remote_tool.config.model import HostKeyPolicy, Server
from remote_tool.errors import (
    ConnectError,
    HostKeyError,
    LoginError,
    RemoteCommandError,
    RemoteToolError,
)
from remote_tool.transport.host import MEBIBYTE, Completed, Exit
from remote_tool.transport.known_hosts import (
    Answer,
    HostKey,
    KnownHosts,
    Marker,
    Reader,
    UnusableFileError,
    Verdict,
    accept,
    lookup_names,
)
from remote_tool.transport.script import REMOTE_COMMAND, first_line, new_mark
from remote_tool.transport.session_limit import SessionLimit
from remote_tool.transport.shared import Shared
from remote_tool.transport.ssh_channel import SshChannel, lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from remote_tool.transport.asking import Asker
    from remote_tool.transport.host import Channel

CONNECT_SECONDS = 15.0
LOGIN_SECONDS = 30.0
KEEPALIVE_SECONDS = 15.0
KEEPALIVE_COUNT = 4
CONNECT_ATTEMPTS = 6
CLOSE_SECONDS = 1.0
REFUSED_SECONDS = 3.0
PASSWORD_ATTEMPTS = 3
WINDOW_BYTES = 4 * MEBIBYTE
PACKET_BYTES = 128 * 1024
DEFAULT_USERNAME = "ubuntu"
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
TIMED_OUT_STATUS = 124  # as timeout(1) has it

# Those of a stock OpenSSH; SHA-1 signatures and DSA are not among them.
PLAIN_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
CERTIFICATE_ALGORITHMS = (
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
)
RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


# What no ssh_config changes.
FIXED_OPTIONS: dict[str, Any] = {
    "agent_path": None,  # we ask the agent ourselves, for the keys that we want
    "agent_forwarding": False,
    "x11_forwarding": False,
    "x509_trusted_certs": None,
    "gss_host": None,
    "gss_kex": False,
    "gss_auth": False,
    "host_based_auth": False,
    "pkcs11_provider": None,
    "compression_algs": "none",
    "connect_timeout": None,  # our own tells the two phases apart, and stops while the user types
    "login_timeout": 0,
    "command": None,
    "env": None,
    "send_env": None,
    "request_pty": False,
    "utf8_decode_errors": "replace",
}


@dataclass(frozen=True)
class Surroundings:
    """What every connection of a command shares.

    Attributes:
        known_hosts: The file that new host keys are added to.
        policy: What happens at the first contact.
        reader: Reads known_hosts files.
        asker: Asks the user for secrets.
        notice: Tells the user something, for a server.
        trace: Tells ``-v`` how long something took, in seconds, on a server.
        jumps: The connections to jump hosts; servers behind the same one share it.
    """

    known_hosts: Path
    policy: HostKeyPolicy
    reader: Reader
    asker: Asker
    notice: Callable[[str, str], None]
    trace: Callable[[str, str, float], None]
    jumps: Shared[tuple[str, ...], Connection] = field(default_factory=Shared)


async def connect(server: Server, surroundings: Surroundings) -> SshHost:
    """Log in to a server, through its jump hosts.

    Raises:
        ConnectError: No connection; HostKeyError and LoginError where it is that.
    """
    began = time.monotonic()
    *jumps, endpoint = await asyncio.to_thread(_resolve_way, server)
    connection = await _log_in_through(jumps, endpoint, surroundings)
    surroundings.trace(server.name, f"log in to {endpoint.address} as {endpoint.username}", time.monotonic() - began)
    return SshHost(server.name, connection, surroundings)


class SshHost:
    """A server that we are logged in to; see :class:`remote_tool.transport.host.Host`."""

    def __init__(self, name: str, connection: Connection, surroundings: Surroundings) -> None:
        self._name = name
        self._connection = connection
        self._surroundings = surroundings
        self._sessions = SessionLimit()
        self._opened_one = False
        self._openings: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<SshHost {self._name}>"

    @property
    def name(self) -> str:
        """The server's name in the configuration."""
        return self._name

    @property
    def alive(self) -> bool:
        """Whether the connection stands, as far as we know."""
        return self._connection.alive

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,  # noqa: ASYNC109 - the seam has it
        limit: int = 16 * MEBIBYTE,
        check: bool = True,
        label: str = "",
    ) -> Completed:
        """Run a script to its end; see :meth:`remote_tool.transport.host.Host.run`."""
        label = label or _label_of(script)
        try:
            async with asyncio.timeout(timeout):
                completed = await self._run(script, stdin, limit, label)
        except TimeoutError:
            message = f"{self._name}: {label}: not done after {timeout:g} s"
            raise RemoteCommandError(message, server=self._name, command=label, exit_status=TIMED_OUT_STATUS) from None
        if check and not completed.ok:
            raise _command_error(self._name, label, completed)
        return completed

    @asynccontextmanager
    async def open(self, script: str, *, label: str = "") -> AsyncIterator[Channel]:
        """Start a script; see :meth:`remote_tool.transport.host.Host.open`."""
        async with self._open(script, label or _label_of(script)) as channel:
            yield channel

    async def upload(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a file; see :meth:`remote_tool.transport.host.Host.upload`."""
        folder, name = os.path.split(path)
        if not name or "\0" in path:
            raise ValueError(f"not a file's path: {path!r}")
        # The link may go in the middle, and then stdin ends early: the size tells.
        script = (
            "umask 077\n"
            'cd "$HOME" || exit\n'
            f"mkdir -p -- {_quote_path(folder or '.')} && cd {_quote_path(folder or '.')} || exit\n"
            f"name={shlex.quote(name)}\n"
            "new=.upload.$$\n"
            "trap 'rm -f \"$new\"' EXIT\n"
            "trap 'exit 1' HUP PIPE TERM\n"
            'cat > "$new" || exit\n'
            f'[ "$(wc -c < "$new")" -eq {len(data)} ] || {{ echo "not all of it came" >&2; exit 1; }}\n'
            '[ ! -d "./$name" ] || { echo "$name is a folder" >&2; exit 1; }\n'
            f'chmod {mode:o} "$new" && mv -f "$new" "./$name"\n'
        )
        await self.run(script, stdin=data, timeout=60 + len(data) / 100_000, label=f"upload {path}")

    async def close(self) -> None:
        """End the connection, within a second or so even if the server does not answer."""
        await self._connection.close()

    async def _run(self, script: str, stdin: bytes, limit: int, label: str) -> Completed:
        async with self._open(script, label) as channel:
            if stdin:
                await channel.write(stdin)
            await channel.write_eof()
            out, err = await channel.read_all(limit)
            return Completed(await channel.wait(), out, err)

    @asynccontextmanager
    async def _open(self, script: str, label: str) -> AsyncIterator[SshChannel]:
        began = time.monotonic()
        channel = await self._open_session(script, label)
        try:
            yield channel
        except BaseException:
            channel.hang_up()
            raise
        finally:
            channel.close()
            noise = f" ({channel.noise} bytes of noise before it)" if channel.noise else ""
            self._surroundings.trace(self._name, label + noise, time.monotonic() - began)

    async def _open_session(self, script: str, label: str) -> SshChannel:
        """Open a session, waiting for one of ours to end where the server allows no more."""
        deadline = time.monotonic() + REFUSED_SECONDS
        while True:
            await self._sessions.acquire()
            mark = new_mark()
            channel = SshChannel(self._name, label, mark, first_line(script, mark), self._sessions.release)
            opening = asyncio.create_task(self._connection.create_session(channel))
            self._openings.add(opening)
            opening.add_done_callback(partial(self._settle, channel))
            try:
                # asyncssh would forget a session whose opening is cancelled, and the server would keep it.
                await asyncio.shield(opening)
            except SessionRefusedError as refusal:
                await self._wait_for_room(refusal, deadline)
            except BaseException:
                channel.hang_up()
                raise
            else:
                self._opened_one = True
                return channel

    def _settle(self, channel: SshChannel, opening: asyncio.Task[None]) -> None:
        """Take the end of an opening, also when nobody waits for it any more."""
        self._openings.discard(opening)
        error = None if opening.cancelled() else opening.exception()
        if isinstance(error, SessionRefusedError):
            self._sessions.refused()
        elif error is not None or opening.cancelled():
            self._sessions.release()
        elif channel.is_given_up:
            channel.hang_up()

    async def _wait_for_room(self, refusal: SessionRefusedError, deadline: float) -> None:
        if self._sessions.held:
            return  # one of ours will end, and wake us
        # sshd counts a session for a moment longer than its channel lives.
        if not self._opened_one or time.monotonic() > deadline:
            raise _refused(self._name, refusal) from None
        await asyncio.sleep(0.05)


class SessionRefusedError(Exception):
    """The server opens no more sessions on this connection."""


class Stage(IntEnum):
    """How far a connection got."""

    CONNECTING = 1
    GREETING = 2
    LOGGING_IN = 3
    READY = 4


@dataclass(frozen=True)
class Endpoint:
    """Where and how to log in: what configs.yaml and ``~/.ssh/config`` say together.

    Attributes:
        server: The name in the configuration, for errors.
        is_jump: Whether it is a jump host on the way to the server.
        alias: What was configured; ``~/.ssh/config`` is asked for it.
        host: What is connected to.
        port: Of the host.
        username: Who logs in.
        names: What the host is called in known_hosts.
        jumps: The jump hosts before it, ``user@host:port`` each.
        trust: Where host keys are looked up.
        identity: What to log in with.
        config_files: What asyncssh reads for all the rest.
        has_algorithms: Whether ssh_config chooses the host key algorithms and ciphers, in this order.
    """

    server: str
    is_jump: bool
    alias: str
    host: str
    port: int
    username: str
    names: tuple[str, ...]
    jumps: tuple[str, ...]
    trust: Trust
    identity: Identity
    config_files: tuple[Path, ...]
    has_algorithms: tuple[bool, bool]

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"jump host {self.alias}" if self.is_jump else self.server

    @property
    def ssh_command(self) -> str:
        """What a user types to try it."""
        port = "" if self.port == 22 else f"-p {self.port} "  # noqa: PLR2004 - the port of ssh
        return f"ssh {port}{self.username}@{self.alias}"


@dataclass(frozen=True)
class Trust:
    """Where the key of a host is looked up, and what ssh_config demands."""

    files: tuple[Path, ...]
    revoked: Path | None
    strict: bool
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity:
    """What to log in with; private_key alone when it is configured."""

    private_key: Path | None = None
    password: str | None = field(default=None, repr=False)
    password_env: str | None = None
    files: tuple[Path, ...] = ()
    files_only: bool = False
    agent: str = ""


class _UserConfig(SSHClientConfig):
    """``~/.ssh/config`` with the options that asyncssh leaves out and that decide about trust."""

    _handlers = SSHClientConfig._handlers | {  # noqa: SLF001 - Host and Match stay its own
        "stricthostkeychecking": ("StrictHostKeyChecking", SSHClientConfig._set_string),  # noqa: SLF001
        "revokedhostkeys": ("RevokedHostKeys", SSHClientConfig._set_string),  # noqa: SLF001
        "knownhostscommand": ("KnownHostsCommand", SSHClientConfig._set_string),  # noqa: SLF001
    }
    _no_split = SSHClientConfig._no_split | {"knownhostscommand"}  # noqa: SLF001
    _percent_expand = SSHClientConfig._percent_expand | {  # noqa: SLF001
        "UserKnownHostsFile",
        "GlobalKnownHostsFile",
        "RevokedHostKeys",
    }


def _resolve_way(server: Server) -> list[Endpoint]:
    """Return the jump hosts to a server, the nearest first, and the server."""
    identity = Identity(private_key=server.private_key, password=server.password, password_env=server.password_env)
    wanted = _Wanted(server.name, server.hostname, server.username, server.port, identity)
    way = [_resolve(wanted, default_username=DEFAULT_USERNAME)]
    seen: list[str] = []
    jumps = list(way[0].jumps)
    while jumps:
        jump = jumps.pop()
        seen.append(jump)
        if jump in seen[:-1]:
            text = f"{server.name}: ProxyJump of ~/.ssh/config runs in a circle: {', '.join(seen)}"
            raise ConnectError(text, server=server.name)
        way.insert(0, _resolve_jump(server.name, jump))
        jumps = jumps or list(way[0].jumps)
    return way


def _resolve_jump(server: str, jump: str) -> Endpoint:
    split = _split_jump(jump)
    if split is None:
        raise ConnectError(f"{server}: ProxyJump of ~/.ssh/config is not understood: {jump!r}", server=server)
    user, host, port = split
    wanted = _Wanted(server, host, user, port, Identity(), is_jump=True)
    return _resolve(wanted, default_username=getpass.getuser())


@dataclass(frozen=True)
class _Wanted:
    server: str
    alias: str
    username: str | None
    port: int | None
    identity: Identity
    is_jump: bool = False


def _resolve(wanted: _Wanted, default_username: str) -> Endpoint:
    """Ask ``~/.ssh/config`` for all that is not configured."""
    file = Path.home() / ".ssh" / "config"
    files = (file,) if os.access(file, os.R_OK) else ()
    try:
        settings = _load_config(wanted, files)
    except (OSError, ValueError) as error:
        raise ConnectError(f"{wanted.server}: {file} cannot be used: {error}", server=wanted.server) from None
    host = str(settings.get("Hostname", wanted.alias))
    port = cast("int", settings.get("Port", 22))
    alias = cast("str | None", settings.get("HostKeyAlias"))
    return Endpoint(
        server=wanted.server,
        is_jump=wanted.is_jump,
        alias=wanted.alias,
        host=host,
        port=port,
        username=str(settings.get("User") or default_username),
        names=lookup_names(host, port, alias),
        jumps=_jumps_of(settings),
        trust=_trust_of(settings),
        identity=_identity_of(settings, wanted.identity),
        config_files=files,
        has_algorithms=(bool(settings.get("HostKeyAlgorithms")), bool(settings.get("Ciphers"))),
    )


def _load_config(wanted: _Wanted, files: tuple[Path, ...]) -> SSHClientConfig:
    def load(*, final: bool) -> SSHClientConfig:
        arguments = (getpass.getuser(), wanted.username or (), wanted.alias, wanted.port or ())
        return cast("SSHClientConfig", _UserConfig.load(None, list(files), False, False, final, *arguments))

    settings = load(final=False)
    return load(final=True) if settings.has_match_final() else settings


def _jumps_of(settings: SSHClientConfig) -> tuple[str, ...]:
    jumps = cast("str | None", settings.get("ProxyJump"))
    return tuple(jump.strip() for jump in jumps.split(",")) if jumps else ()


def _trust_of(settings: SSHClientConfig) -> Trust:
    ssh = Path.home() / ".ssh"
    user = cast("list[str] | None", settings.get("UserKnownHostsFile"))
    system = cast("list[str] | None", settings.get("GlobalKnownHostsFile"))
    revoked = cast("str | None", settings.get("RevokedHostKeys"))
    files = [ssh / "known_hosts", ssh / "known_hosts2"] if user is None else [Path(name).expanduser() for name in user]
    files += (
        [Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2")]
        if system is None
        else [Path(name).expanduser() for name in system]
    )
    command = settings.get("KnownHostsCommand")
    strict = str(settings.get("StrictHostKeyChecking", "")).lower() in {"yes", "true"}
    return Trust(
        files=tuple(files),
        revoked=Path(revoked).expanduser() if revoked else None,
        strict=strict or command is not None,
        ignored=("KnownHostsCommand",) if command is not None else (),
    )


def _identity_of(settings: SSHClientConfig, configured: Identity) -> Identity:
    files = cast("list[str] | None", settings.get("IdentityFile"))
    agent = cast("str | None", settings.get("IdentityAgent", "SSH_AUTH_SOCK"))
    if agent == "SSH_AUTH_SOCK":
        agent = os.environ.get("SSH_AUTH_SOCK", "")
    names = [Path(name).expanduser() for name in files] if files else [Path.home() / ".ssh" / n for n in DEFAULT_KEYS]
    return Identity(
        private_key=configured.private_key,
        password=configured.password,
        password_env=configured.password_env,
        files=tuple(names),
        files_only=bool(settings.get("IdentitiesOnly")),
        agent=str(Path(agent).expanduser()) if agent else "",
    )


def _split_jump(jump: str) -> tuple[str | None, str, int | None] | None:
    """Take ``[ssh://][user@]host[:port]`` apart."""
    text = jump.removeprefix("ssh://").rstrip("/")
    user, at, place = text.rpartition("@")
    match = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?", place)
    if match is None:
        return None
    port = match["port"]
    return user if at else None, match["six"] or match["host"], int(port) if port else None


async def _log_in_through(jumps: Sequence[Endpoint], endpoint: Endpoint, surroundings: Surroundings) -> Connection:
    """Log in to each jump host in turn and last to the endpoint; the key of each is checked like any other."""
    tunnel: Connection | None = None
    for number, jump in enumerate(jumps, 1):
        way = tuple(f"{before.username}@{before.address}" for before in jumps[:number])
        tunnel = await surroundings.jumps.get(way, partial(_log_in_patiently, jump, surroundings, tunnel))
    return await _log_in_patiently(endpoint, surroundings, tunnel)


async def _log_in_patiently(endpoint: Endpoint, surroundings: Surroundings, tunnel: Connection | None) -> Connection:
    """Log in; try again only where a busy server hung up before it knew who we are (MaxStartups)."""
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        connection = Connection(endpoint, surroundings)
        try:
            await connection.log_in(tunnel)
        except HungUpError as error:
            if attempt == CONNECT_ATTEMPTS:
                raise ConnectError(error.message, hint=error.hint, server=error.server) from None
            await asyncio.sleep(min(0.1 * 2**attempt, 3.0) * random.uniform(0.5, 1.5))  # noqa: S311 - only a delay
        else:
            return connection
    raise AssertionError


class HungUpError(ConnectError):
    """The server closed the connection before the login began; it may take the next one."""


class Connection(asyncssh.SSHClient):
    """One login and what we know of it; asyncssh calls most of its methods."""

    def __init__(self, endpoint: Endpoint, surroundings: Surroundings) -> None:
        self.endpoint = endpoint
        self.surroundings = surroundings
        self.stage = Stage.CONNECTING
        self.ended = False
        self.end_reason: Exception | None = None
        self.refusal: RemoteToolError | None = None
        self.methods: Sequence[str] = ()
        self.notes: list[str] = []
        self._known = KnownHosts([])
        self._raw: asyncssh.SSHClientConnection | None = None
        self._deadline: asyncio.Timeout | None = None
        self._password_used = False
        self._questions = 0
        self._locked_keys: list[Path] = []

    @property
    def alive(self) -> bool:
        return not self.ended

    async def log_in(self, tunnel: Connection | None) -> None:
        """Connect, check the host key, log in.

        Raises:
            HungUpError: The server hung up before the login began.
            ConnectError: Any other failure.
        """
        endpoint = self.endpoint
        with _explained(self):
            self._known = self._read_known_hosts()
            agent = await self._connect_agent()
            try:
                options = self._options(await self._load_keys(agent))
                async with asyncio.timeout(CONNECT_SECONDS) as self._deadline:
                    self._raw = await asyncssh.connect(
                        endpoint.alias, endpoint.port, tunnel=tunnel and tunnel.raw, **options
                    )
            except ValueError as error:
                if self.stage is not Stage.CONNECTING or isinstance(error, _FOREIGN):
                    raise
                text = f"{endpoint.title}: ~/.ssh/config cannot be used: {error}"
                raise ConnectError(text, server=endpoint.server) from None
            finally:
                self._deadline = None
                if agent is not None:
                    agent.close()
        self.stage = Stage.READY

    async def close(self) -> None:
        """End the connection; a server that does not answer is left after a second."""
        if self._raw is None:
            return
        self._raw.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._raw.wait_closed()
        except TimeoutError:
            self._raw.abort()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._raw.wait_closed()

    async def create_session(self, channel: SshChannel) -> None:
        """Start the shell in a session of its own.

        Raises:
            SessionRefusedError: The server opens no more.
            ConnectionLostError: The link went.
        """
        raw = self._raw
        if raw is None or self.ended:
            raise lost(self.endpoint.server, self.end_reason)
        try:
            with _explained(self):
                await raw.create_session(
                    lambda: cast("asyncssh.SSHClientSession[bytes]", channel),
                    REMOTE_COMMAND,
                    encoding=None,
                    window=WINDOW_BYTES,
                    max_pktsize=PACKET_BYTES,
                )
        except asyncssh.ChannelOpenError as error:
            if self.ended:
                raise lost(self.endpoint.server, self.end_reason or error) from None
            raise SessionRefusedError(error.reason) from None

    def _options(self, keys: Sequence[asyncssh.SSHKeyPair]) -> dict[str, Any]:
        has_algorithms, has_ciphers = self.endpoint.has_algorithms
        options: dict[str, Any] = FIXED_OPTIONS | {
            "username": self.endpoint.username,
            "config": list(self.endpoint.config_files) or None,
            "client_factory": lambda: self,
            "known_hosts": self._trusted_by_asyncssh,
            "client_keys": list(keys) or None,
            "keepalive_interval": KEEPALIVE_SECONDS,
            "keepalive_count_max": KEEPALIVE_COUNT,
        }
        if not has_algorithms:
            options["server_host_key_algs"] = self._host_key_algorithms()
        if not has_ciphers:
            options["encryption_algs"] = "^aes128-gcm@openssh.com"  # the fastest by far
        return options

    @property
    def raw(self) -> asyncssh.SSHClientConnection:
        assert self._raw is not None
        return self._raw

    # Host keys

    def _read_known_hosts(self) -> KnownHosts:
        trust = self.endpoint.trust
        for option in trust.ignored:
            text = f"{option} of ~/.ssh/config is not used; the host key must be in a known_hosts file"
            self.surroundings.notice(self.endpoint.server, text)
        try:
            return self.surroundings.reader.read((*trust.files, self.surroundings.known_hosts), trust.revoked)
        except UnusableFileError as error:
            raise HostKeyError(f"{self.endpoint.title}: {error}", server=self.endpoint.server) from None

    def _host_key_algorithms(self) -> list[str]:
        """Ask first for the types of key that we know, so that the server does not show another of its keys."""
        names = self.endpoint.names
        known = [
            algorithm
            for name in names
            for entry in self._known.select([name], Marker.TRUSTED)
            for algorithm in (RSA_SIGNATURES if entry.key.kind == "ssh-rsa" else (entry.key.kind,))
            if algorithm in PLAIN_ALGORITHMS
        ]
        certificates = CERTIFICATE_ALGORITHMS if self._known.select(names, Marker.AUTHORITY) else ()
        return list(dict.fromkeys((*known, *certificates, *PLAIN_ALGORITHMS)))

    def _trusted_by_asyncssh(self, *_: object) -> tuple[Sequence[Any], ...]:
        """Tell asyncssh of no key to trust, so that each comes to our own check.

        It must know the revoked ones where certificates count: it looks for the key inside the certificate itself.
        """
        names = self.endpoint.names
        revoked = self._known.revoked_keys(names) if self._known.select(names, Marker.AUTHORITY) else set()
        imported = [_import_key(key) for key in revoked]
        return [], [], [key for key in imported if key is not None]

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide about the server's key; nothing secret was sent before."""
        del host, addr, port
        shown = HostKey(key.get_algorithm(), key.public_data)
        answer = self._known.check(self.endpoint.names, shown)
        try:
            if answer.verdict is Verdict.NEW:
                answer = self._accept(shown)
        except RemoteToolError as refusal:
            self.refusal = refusal
            return False
        if answer.verdict is Verdict.KNOWN:
            self.stage = Stage.LOGGING_IN
            return True
        self.refusal = self._bad_key(shown, answer)
        return False

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide about the authority that signed the server's key."""
        del host, addr, port
        shown = HostKey(key.get_algorithm(), key.public_data)
        authorities = self._known.select(self.endpoint.names, Marker.AUTHORITY)
        if any(entry.key == shown for entry in authorities):
            self.stage = Stage.LOGGING_IN
            return True
        return False

    def _accept(self, key: HostKey) -> Answer:
        endpoint = self.endpoint
        if self.surroundings.policy is HostKeyPolicy.STRICT or endpoint.trust.strict:
            raise HostKeyError(
                f"The host key of {endpoint.title} ({endpoint.address}) is not known: {key.kind} {key.fingerprint}",
                hint=f"Compare it with the server's own, then log in once by hand: {endpoint.ssh_command}",
                server=endpoint.server,
            )
        try:
            answer = accept(self.surroundings.known_hosts, endpoint.names[0], key)
        except UnusableFileError as error:
            raise HostKeyError(f"{endpoint.title}: {error}", server=endpoint.server) from None
        if answer.verdict is Verdict.NEW:
            self.surroundings.notice(endpoint.server, f"new host key of {endpoint.address} accepted: {key.fingerprint}")
            return Answer(Verdict.KNOWN)
        return answer

    def _bad_key(self, key: HostKey, answer: Answer) -> HostKeyError:
        endpoint = self.endpoint
        if answer.verdict is Verdict.REVOKED:
            return HostKeyError(
                f"The host key of {endpoint.title} ({endpoint.address}) is revoked: {key.kind} {key.fingerprint}",
                hint="Do not log in: ask who runs the server for its new key",
                server=endpoint.server,
            )
        old = ", ".join(
            f"{entry.key.kind} {entry.key.fingerprint} ({entry.file}:{entry.line})" for entry in answer.entries
        )
        name, file = shlex.quote(endpoint.names[0]), shlex.quote(str(answer.entries[0].file))
        return HostKeyError(
            f"The host key of {endpoint.title} ({endpoint.address}) has changed: "
            f"known is {old}; it shows {key.kind} {key.fingerprint}. Somebody may be listening in",
            hint=f"If the server was set up anew: ssh-keygen -R {name} -f {file}",
            server=endpoint.server,
        )

    # Logging in

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Start the time for the login: the server has answered."""
        self._raw = conn
        self.stage = Stage.GREETING
        self._extend_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember why."""
        self.ended = True
        self.end_reason = exc

    def debug_msg_received(self, msg: str, lang: str, always_display: bool) -> None:
        """Answer what sshd says after each login by key: it is small, and the next packet waits for our answer."""
        del msg, lang, always_display
        _acknowledge_now(self._raw)

    async def public_key_auth_requested(self) -> Sequence[asyncssh.SSHKeyPair] | None:
        """Offer the keys with a passphrase, one by one, when no other key was taken."""
        self._note_methods()
        while self._locked_keys:
            path = self._locked_keys.pop(0)
            if pairs := await self._unlock(path):
                return pairs
        return None

    async def password_auth_requested(self) -> str | None:
        """Return the configured password once, then what the user types."""
        self._note_methods()
        if self._password_used and self._configured_password() is not None:
            return None
        self._password_used = True
        if (password := self._configured_password()) is not None:
            return password
        return await self._ask(f"Password of {self.endpoint.username} on {self.endpoint.title}: ")

    def kbdint_auth_requested(self) -> str | None:
        """Take part where there is a password or somebody to ask."""
        self._note_methods()
        can = self._configured_password() is not None and not self._password_used
        return "" if can or self.surroundings.asker.can_ask else None

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer the one question for a password with the password, and anything else by asking."""
        del name, instructions, lang
        answers = []
        for text, _ in prompts:
            answer = await self._answer(_printable(text), alone=len(prompts) == 1)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    async def _answer(self, prompt: str, *, alone: bool) -> str | None:
        password = self._configured_password()
        if alone and password is not None and "passw" in prompt.lower():
            if self._password_used:
                return None
            self._password_used = True
            return password
        return await self._ask(f"{self.endpoint.title}: {prompt}")

    def _configured_password(self) -> str | None:
        identity = self.endpoint.identity
        if identity.password is not None or identity.password_env is None:
            return identity.password
        return os.environ.get(identity.password_env)

    async def _ask(self, prompt: str) -> str | None:
        self._questions += 1
        if self._questions > PASSWORD_ATTEMPTS or not self.surroundings.asker.can_ask:
            return None
        if self._deadline is not None:
            self._deadline.reschedule(None)
        try:
            return await self.surroundings.asker.ask(prompt)
        finally:
            self._extend_deadline()

    def _extend_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + LOGIN_SECONDS)

    def _note_methods(self) -> None:
        if self._raw is not None:
            self.methods = self.methods or self._raw.get_server_auth_methods()

    # Keys

    async def _connect_agent(self) -> asyncssh.SSHAgentClient | None:
        path = self.endpoint.identity.agent
        if not path:
            return None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncssh.connect_agent(path)
        except (OSError, TimeoutError, asyncssh.Error) as error:
            self.notes.append(f"the ssh agent at {path} does not answer ({error})")
            return None

    async def _load_keys(self, agent: asyncssh.SSHAgentClient | None) -> list[asyncssh.SSHKeyPair]:
        private_key = self.endpoint.identity.private_key
        if private_key is not None:
            return await self._load_configured_key(private_key, agent)
        keys = await self._agent_keys(agent)
        for path in self.endpoint.identity.files:
            keys += await self._load_usual_key(path)
        return keys

    async def _load_configured_key(
        self, path: Path, agent: asyncssh.SSHAgentClient | None
    ) -> list[asyncssh.SSHKeyPair]:
        """Load the one key that is configured; no other is offered, not even by the agent."""
        server = self.endpoint.server
        problem = _problem_of_key_file(path)
        if problem:
            raise LoginError(f"{server}: the private key {path} {problem[0]}", hint=problem[1], server=server)
        try:
            return await asyncio.to_thread(_load_key_file, path)
        except LockedKeyError:
            pass
        except ValueError as error:
            hint = f"private_key: of {server} must name the file without .pub"
            raise LoginError(f"{server}: {path} is not a private key: {error}", hint=hint, server=server) from None
        if agent is not None and (pairs := await self._agent_keys(agent, [path])):
            return pairs
        if pairs := await self._unlock(path):
            return pairs
        why = "the passphrase does not fit" if self.surroundings.asker.can_ask else "there is no terminal to ask for it"
        raise LoginError(
            f"{server}: the private key {path} has a passphrase, and {why}", hint=f"ssh-add {path}", server=server
        )

    async def _load_usual_key(self, path: Path) -> list[asyncssh.SSHKeyPair]:
        """Load a key of ~/.ssh where there is one; what ssh would leave out is left out with a word."""
        problem = _problem_of_key_file(path)
        if problem == MISSING or path.suffix == ".pub":
            return []
        if problem:
            self.notes.append(f"the private key {path} {problem[0]}")
            return []
        try:
            return await asyncio.to_thread(_load_key_file, path)
        except LockedKeyError:
            self._locked_keys.append(path)
        except ValueError as error:
            self.notes.append(f"{path} is not a private key: {error}")
        return []

    async def _unlock(self, path: Path) -> list[asyncssh.SSHKeyPair]:
        for _ in range(PASSWORD_ATTEMPTS):
            passphrase = await self._ask(f"Passphrase of {path}: ")
            if not passphrase:
                break
            with suppress(ValueError):
                return await asyncio.to_thread(_load_key_file, path, passphrase)
        self.notes.append(f"the private key {path} has a passphrase")
        return []

    async def _agent_keys(
        self, agent: asyncssh.SSHAgentClient | None, only: Sequence[Path] | None = None
    ) -> list[asyncssh.SSHKeyPair]:
        if only is None and self.endpoint.identity.files_only:
            only = self.endpoint.identity.files
        wanted = None if only is None else [data for path in only if (data := _public_data(path))]
        if agent is None or wanted == []:
            return []
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return list(await agent.get_keys(wanted))
        except (OSError, ValueError, asyncssh.Error) as error:
            self.notes.append(f"the ssh agent does not answer ({error})")
            return []


def _acknowledge_now(connection: asyncssh.SSHClientConnection | None) -> None:
    """Let Linux acknowledge what came, instead of 40 ms later; until then sshd holds back what it says next."""
    link = connection.get_extra_info("socket") if connection is not None else None
    if link is not None and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class LockedKeyError(ValueError):
    """A key file cannot be read without a passphrase."""


MISSING = ("does not exist", "Check private_key: in .remote/configs.yaml")


def _load_key_file(path: Path, passphrase: str | None = None) -> list[asyncssh.SSHKeyPair]:
    try:
        return list(asyncssh.load_keypairs(str(path), passphrase))
    except asyncssh.KeyImportError as error:
        if passphrase is None and str(error).startswith("Passphrase"):
            raise LockedKeyError(str(error)) from None
        raise


def _problem_of_key_file(path: Path) -> tuple[str, str] | None:
    """Return what is wrong with a key file as ssh would see it, and what helps."""
    try:
        status = path.stat()
        with path.open("rb"):
            pass
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read: {error.strerror}", f"ls -l {shlex.quote(str(path))}"
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return f"is open to other users (mode {mode:04o}) and is not used", f"chmod 600 {shlex.quote(str(path))}"
    return None


def _public_data(path: Path) -> bytes | None:
    """Return the public half of a key file, which needs no passphrase."""
    for candidate in (path, path.with_name(path.name + ".pub")):
        with suppress(OSError, ValueError):
            return asyncssh.read_public_key(str(candidate)).public_data
    return None


def _import_key(key: HostKey) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.import_public_key(key.text)
    except asyncssh.KeyImportError:
        return None


# Errors

# Every error of the library and of the system crosses this line; a bug of ours does not.
_FOREIGN = (
    asyncssh.Error,
    asyncssh.ConfigParseError,
    asyncssh.KeyImportError,
    asyncssh.KeyExportError,
    asyncssh.KeyGenerationError,
    asyncssh.KeyEncryptionError,
    asyncssh.ChannelListenError,
    asyncssh.PasswordChangeRequired,
    asyncssh.BreakReceived,
    asyncssh.SignalReceived,
    asyncssh.TerminalSizeChanged,
    OSError,
    UnicodeError,
)


@contextmanager
def _explained(connection: Connection) -> Iterator[None]:
    """Turn foreign errors into ours, with the server's name, the value that is wrong and what to do."""
    try:
        yield
    except _FOREIGN as error:
        if connection.stage is Stage.READY and isinstance(error, asyncssh.ChannelOpenError):
            raise
        raise explain(error, connection) from None


def explain(error: Exception, connection: Connection) -> RemoteToolError:
    """Return our error for one of asyncssh or of the system."""
    server = connection.endpoint.server
    if connection.refusal is not None:
        return connection.refusal
    if connection.stage is Stage.READY:
        return lost(server, error)
    if isinstance(error, OSError):
        return _explain_system_error(error, connection)
    if isinstance(error, asyncssh.PermissionDenied) or "Too many authentication failures" in str(error):
        return _explain_login(error, connection)
    return _explain_protocol(error, connection)


def _explain_system_error(error: OSError, connection: Connection) -> RemoteToolError:
    endpoint, stage = connection.endpoint, connection.stage
    where = f"{endpoint.title}: {endpoint.address}"
    number = _errno_of(error)
    check = f"Check hostname: and port: of {endpoint.server} in .remote/configs.yaml"
    if isinstance(error, TimeoutError) and stage is not Stage.CONNECTING:
        return ConnectError(
            f"{where} took the connection, but the login was not done within {LOGIN_SECONDS:g} s",
            hint=f"Is it an SSH server? Try: {endpoint.ssh_command}",
            server=endpoint.server,
        )
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return _explain_hang_up(error, connection)
    if isinstance(error, TimeoutError):
        text = f"{where} does not answer within {CONNECT_SECONDS:g} s"
        return ConnectError(
            text, hint=f"Is it on, and is the port open in its firewall? {check}", server=endpoint.server
        )
    if isinstance(error, socket.gaierror):
        text = f"{endpoint.title}: unknown host name {endpoint.host!r} ({error.strerror})"
        return ConnectError(text, hint=check, server=endpoint.server)
    if number == errno.ECONNREFUSED:
        text = f"{where} refuses connections"
        return ConnectError(text, hint=f"Is sshd running there? {check}", server=endpoint.server)
    reason = os.strerror(number) if number else str(error)
    return ConnectError(f"{where} cannot be reached: {reason}", hint=check, server=endpoint.server)


def _errno_of(error: OSError) -> int | None:
    """Return the number of an error; asyncio hides it when it tried several addresses."""
    if error.errno is not None:
        return error.errno
    numbers = set(re.findall(r"\[Errno (\d+)\]", str(error)))
    return int(numbers.pop()) if len(numbers) == 1 else None


def _explain_hang_up(error: Exception, connection: Connection) -> ConnectError:
    endpoint = connection.endpoint
    where = f"{endpoint.title}: {endpoint.address}"
    if connection.stage is Stage.LOGGING_IN:
        return ConnectError(
            f"{where} hung up during the login as {endpoint.username}: {error}",
            hint=f"Try: {endpoint.ssh_command}",
            server=endpoint.server,
        )
    return HungUpError(
        f"{where} hung up before the login: {error}",
        hint="It may be busy with other logins (MaxStartups of sshd), or refuse us for a while after failed ones",
        server=endpoint.server,
    )


def _explain_login(error: Exception, connection: Connection) -> LoginError:
    endpoint, identity = connection.endpoint, connection.endpoint.identity
    methods = ", ".join(connection.methods)
    text = f"Cannot log in to {endpoint.title} ({endpoint.address}) as {endpoint.username}"
    if "Too many authentication failures" in str(error):
        text += ": too many authentication failures, more keys were offered than it allows"
        hint = f"Set private_key: of {endpoint.server} in .remote/configs.yaml; then only that key is offered"
        return LoginError(text, hint=hint, server=endpoint.server)
    text += f"; it accepts {methods}" if methods else ""
    notes = list(connection.notes)
    if identity.private_key is not None and "publickey" in methods:
        notes.insert(0, f"it refused the key {identity.private_key}")
    notes += _notes_on_password(connection)
    text += "".join(f"; {note}" for note in notes)
    hint = f"Check username: and private_key: of {endpoint.server} in .remote/configs.yaml, or try: "
    return LoginError(text, hint=hint + endpoint.ssh_command, server=endpoint.server)


def _notes_on_password(connection: Connection) -> list[str]:
    if not {"password", "keyboard-interactive"}.intersection(connection.methods):
        return []
    identity = connection.endpoint.identity
    if identity.password is not None or (identity.password_env and os.environ.get(identity.password_env) is not None):
        return ["it refused the password"]
    if identity.password_env:
        return [f"the password variable {identity.password_env} is not set"]
    return [] if connection.surroundings.asker.can_ask else ["there is no terminal to ask for a password"]


def _explain_protocol(error: Exception, connection: Connection) -> RemoteToolError:
    endpoint = connection.endpoint
    where = f"{endpoint.title} ({endpoint.address})"
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        text = f"The host key of {where} is not trusted: {error}"
        return HostKeyError(text, hint=f"Try: {endpoint.ssh_command}", server=endpoint.server)
    if isinstance(error, asyncssh.ConnectionLost):
        return _explain_hang_up(error, connection)
    if isinstance(error, asyncssh.ChannelOpenError):
        text = f"{endpoint.title}: its jump host cannot reach {endpoint.address}: {error}"
        return ConnectError(text, hint="Check ProxyJump in ~/.ssh/config", server=endpoint.server)
    if isinstance(error, asyncssh.PasswordChangeRequired):
        text = f"Cannot log in to {where} as {endpoint.username}: the password has expired"
        return LoginError(text, hint=f"Change it by: {endpoint.ssh_command}", server=endpoint.server)
    if isinstance(error, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        text = f"Cannot log in to {where} as {endpoint.username}: a key cannot be used: {error}"
        return LoginError(text, hint=f"Try: {endpoint.ssh_command}", server=endpoint.server)
    text = f"No SSH connection to {where}: {_printable(str(error)) or type(error).__name__}"
    return ConnectError(text, hint=f"Try: {endpoint.ssh_command}", server=endpoint.server)


def _refused(server: str, refusal: SessionRefusedError) -> ConnectError:
    return ConnectError(
        f"{server}: the server opens no session: {_printable(str(refusal))}",
        hint="Look at MaxSessions in its sshd_config, and at what other sessions of ours still run there",
        server=server,
    )


def _command_error(server: str, label: str, completed: Completed) -> RemoteCommandError:
    status = _status_of(completed.exit)
    tail = completed.stderr[-2000:].decode(errors="replace").strip()
    how = f"was ended by SIG{completed.exit.signal}" if completed.exit.signal else f"failed with status {status}"
    message = f"{server}: {label} {how}" + (f": {tail.splitlines()[-1]}" if tail else "")
    return RemoteCommandError(message, server=server, command=label, exit_status=status, stderr_tail=tail)


def _status_of(ended: Exit) -> int:
    if ended.status is not None:
        return ended.status
    return 128 + int(getattr(signal, f"SIG{ended.signal}", 0))


def _label_of(script: str) -> str:
    """Return what shows for a script without a label: its first line that does something."""
    lines = [line.strip() for line in script.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return (lines[0] if lines else "script")[:100]


def _quote_path(path: str) -> str:
    return shlex.quote(path if path.startswith("/") else f"./{path}")


def _printable(text: str) -> str:
    """Return a server's text without what could steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:500]
