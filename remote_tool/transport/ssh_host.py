"""A server behind one SSH connection; the only module that knows asyncssh."""

from __future__ import annotations

import asyncio
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remote_tool.errors import ConnectError, HostKeyError, LoginError, RemoteCommandError, RemoteToolError
from remote_tool.transport import login_messages
from remote_tool.transport.endpoint import Endpoint, Identity, Means, Trust, printable
from remote_tool.transport.host import MEBIBYTE, Completed, Exit
from remote_tool.transport.host_key_check import HostKeyCheck
from remote_tool.transport.known_hosts import DEFAULT_PORT, HostKey, lookup_names
from remote_tool.transport.library_search import quick_library_search
from remote_tool.transport.login import Login, key_name
from remote_tool.transport.login_messages import HungUpError, Progress, Stage
from remote_tool.transport.passwords import LoginClock, Passwords
from remote_tool.transport.script import REMOTE_COMMAND, first_line, new_mark
from remote_tool.transport.session_limit import SessionLimit
from remote_tool.transport.ssh_channel import SshChannel, lost

with quick_library_search():
    import asyncssh
    from asyncssh.config import SSHClientConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from remote_tool.config.model import Server
    from remote_tool.transport.host import Channel
    from remote_tool.transport.passwords import Passphrases
    from remote_tool.transport.surroundings import Surroundings

KEEPALIVE_SECONDS = 15.0
KEEPALIVE_COUNT = 4
# Before each further try, in seconds; a login that a busy server dropped is often taken at once. An sshd that refuses
# us after failed logins (PerSourcePenalties) does so for 5 to 15 s at first, and all of these together are longer.
PAUSES = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 6.4)
JITTER = (0.85, 1.5)
TOLD_PAUSE = 1.0
CLOSE_SECONDS = 1.0
REFUSED_SECONDS = 3.0
WINDOW_BYTES = 8 * MEBIBYTE
PACKET_BYTES = 128 * 1024
LOGINS_AT_ONCE = 8  # to one address: a stock sshd begins to drop at 10
MSG_IGNORE = 2  # RFC 4253, 11.2
WITHOUT_FILLERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")
DEFAULT_USERNAME = "ubuntu"
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
TIMED_OUT_STATUS = 124  # as timeout(1) has it

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


async def connect(server: Server, surroundings: Surroundings, means: Means = Means.ANY) -> SshHost:
    """Log in to a server, through its jump hosts.

    Raises:
        ConnectError: No connection; HostKeyError and LoginError where it is that.
    """
    began = time.monotonic()
    *jumps, endpoint = await asyncio.to_thread(resolve_way, server)
    endpoint = replace(endpoint, identity=replace(endpoint.identity, means=means))
    connection = await _log_in_through(jumps, endpoint, surroundings)
    surroundings.trace(server.name, f"log in to {endpoint.address} as {endpoint.username}", time.monotonic() - began)
    return SshHost(server.name, connection, surroundings.trace)


class SshHost:
    """A server that we are logged in to; see :class:`remote_tool.transport.host.Host`."""

    def __init__(self, name: str, connection: Connection, trace: Callable[[str, str, float], None]) -> None:
        self._name = name
        self._connection = connection
        self._trace = trace
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
    def login(self) -> Login:
        """How we got in."""
        return self._connection.login

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
            self._trace(self._name, label + noise, time.monotonic() - began)

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


class Connection(asyncssh.SSHClient):
    """One login; asyncssh calls most of its methods."""

    def __init__(self, endpoint: Endpoint, surroundings: Surroundings) -> None:
        self.progress = Progress(endpoint, surroundings.asker.can_ask)
        self.refusal: RemoteToolError | None = None
        self._endpoint = endpoint
        self._clock = LoginClock()
        self._passwords = Passwords(endpoint, surroundings.asker, self._clock, surroundings.common_passwords)
        self._keys = _Keys(self.progress, self._passwords, surroundings.passphrases)
        self._host_keys = HostKeyCheck(endpoint, surroundings.rules)
        self.raw: asyncssh.SSHClientConnection | None = None
        self._ended = False
        self._end_reason: Exception | None = None

    @property
    def alive(self) -> bool:
        """Whether the connection stands, as far as we know."""
        return not self._ended

    @property
    def login(self) -> Login:
        """How we got in."""
        key = self._host_keys.accepted
        return Login(
            username=self._endpoint.username,
            method=self.progress.method or "no key",
            host_key=f"{key_name(key.kind)} {key.fingerprint}" if key else "",
            is_new=self._host_keys.is_new,
        )

    async def log_in(self, tunnel: Connection | None) -> None:
        """Connect, check the host key, log in.

        Raises:
            HungUpError: The server hung up before the login began.
            ConnectError: Any other failure.
        """
        with explained(self):
            async with _agent_of(self.progress) as agent:
                keys = await self._keys.load(agent)
                _note_signatures(keys, self.progress)
                await self._connect(keys, tunnel)
        _send_no_fillers(self.raw)
        self.progress.stage = Stage.READY

    async def close(self) -> None:
        """End the connection; a server that does not answer is left after a second."""
        if self.raw is None:
            return
        self.raw.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.raw.wait_closed()
        except TimeoutError:
            self.raw.abort()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.raw.wait_closed()

    async def create_session(self, channel: SshChannel) -> None:
        """Start the shell in a session of its own.

        Raises:
            SessionRefusedError: The server opens no more.
            ConnectionLostError: The link went.
        """
        if self.raw is None or self._ended:
            raise lost(self._endpoint.server, self._end_reason)
        try:
            with explained(self):
                await self.raw.create_session(
                    lambda: cast("asyncssh.SSHClientSession[bytes]", channel),
                    REMOTE_COMMAND,
                    encoding=None,
                    window=WINDOW_BYTES,
                    max_pktsize=PACKET_BYTES,
                )
        except asyncssh.ChannelOpenError as error:
            if self._ended:
                raise lost(self._endpoint.server, self._end_reason or error) from None
            raise SessionRefusedError(error.reason) from None

    async def _connect(self, keys: Sequence[asyncssh.SSHKeyPair], tunnel: Connection | None) -> None:
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(login_messages.CONNECT_SECONDS) as timeout:
                with self._clock.of(timeout):
                    self.raw = await asyncssh.connect(
                        endpoint.alias, endpoint.port, tunnel=tunnel and tunnel.raw, **self._options(keys)
                    )
        except ValueError as error:
            if self.progress.stage is not Stage.CONNECTING or isinstance(error, FOREIGN):
                raise
            raise self.progress.bad_config(error) from None

    def _options(self, keys: Sequence[asyncssh.SSHKeyPair]) -> dict[str, Any]:
        endpoint = self._endpoint
        options: dict[str, Any] = FIXED_OPTIONS | {
            "username": endpoint.username,
            "config": list(endpoint.config_files) or None,
            "client_factory": lambda: self,
            "known_hosts": self._trusted_by_asyncssh,
            "client_keys": list(keys) or None,
            "keepalive_interval": KEEPALIVE_SECONDS,
            "keepalive_count_max": KEEPALIVE_COUNT,
        }
        if not endpoint.trust.chooses_algorithms:
            options["server_host_key_algs"] = self._host_keys.algorithms()
        if not endpoint.chooses_ciphers:
            options["encryption_algs"] = "^aes128-gcm@openssh.com"  # the fastest by far
        return options

    # What asyncssh calls, in this order

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Start the time for the login: the server has answered."""
        self.raw = conn
        self.progress.stage = Stage.GREETING
        self._clock.restart(login_messages.LOGIN_SECONDS)

    def _trusted_by_asyncssh(self, *_: object) -> tuple[Sequence[Any], ...]:
        """Tell asyncssh of no key to trust, so that each comes to our own check.

        It must know the revoked ones where certificates count: it looks for the key inside the certificate itself.
        """
        imported = [_import_key(key) for key in self._host_keys.revoked_for_certificates()]
        return [], [], [key for key in imported if key is not None]

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide about the server's key; nothing secret was sent before."""
        del host, addr, port
        try:
            self._host_keys.require(_host_key(key))
        except HostKeyError as refusal:
            self.refusal = refusal
            return False
        self._host_is_trusted()
        return True

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide about the authority that signed the server's key."""
        del host, addr, port
        if not self._host_keys.is_authority(_host_key(key)):
            return False
        self._host_is_trusted()
        return True

    async def public_key_auth_requested(self) -> Sequence[asyncssh.SSHKeyPair] | None:
        """Offer the keys with a passphrase, one by one, when no other key was taken."""
        self._note_methods()
        keys = await self._keys.next_locked()
        _note_signatures(keys or (), self.progress)
        return keys

    async def password_auth_requested(self) -> str | None:
        """Return the next password to try."""
        self._note_methods()
        self.progress.method = "password"
        return await self._passwords.password()

    def kbdint_auth_requested(self) -> str | None:
        """Take part where there is a password or somebody to ask."""
        self._note_methods()
        if not self._passwords.can_answer:
            return None
        self.progress.method = "password"
        return ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer the server's questions."""
        del name, instructions, lang
        return await self._passwords.answers([text for text, _ in prompts])

    def debug_msg_received(self, msg: str, lang: str, always_display: bool) -> None:
        """Answer what sshd says after each login by key: it is small, and the next packet waits for our answer."""
        del msg, lang, always_display
        _acknowledge_now(self.raw)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember why."""
        self._ended = True
        self._end_reason = exc

    def _host_is_trusted(self) -> None:
        self.progress.stage = max(self.progress.stage, Stage.LOGGING_IN)

    def _note_methods(self) -> None:
        if self.raw is not None and not self.progress.methods:
            self.progress.methods = self.raw.get_server_auth_methods()


class _Keys:
    """The private keys that a login may use, in the order in which they are offered."""

    def __init__(self, progress: Progress, passwords: Passwords, passphrases: Passphrases) -> None:
        self._server = progress.endpoint.server
        self._identity = progress.endpoint.identity
        self._progress = progress
        self._passwords = passwords
        self._passphrases = passphrases
        self._locked: list[Path] = []

    async def load(self, agent: asyncssh.SSHAgentClient | None) -> list[asyncssh.SSHKeyPair]:
        """Return the configured key alone, else those of the agent and of ~/.ssh that need no passphrase.

        Raises:
            LoginError: The configured key cannot be used.
        """
        if self._identity.means is Means.PASSWORDS:
            return []
        if self._identity.private_key is not None:
            return await self._load_configured(self._identity.private_key, agent)
        only = self._identity.files if self._identity.files_only else None
        keys = await self._of_agent(agent, only)
        for path in self._identity.files:
            keys += await self._load_usual(path)
        return keys

    async def next_locked(self) -> list[asyncssh.SSHKeyPair] | None:
        """Return the next key that had to be opened with a passphrase."""
        while self._locked:
            if pairs := await self._unlock(self._locked.pop(0)):
                return pairs
        return None

    async def _load_configured(self, path: Path, agent: asyncssh.SSHAgentClient | None) -> list[asyncssh.SSHKeyPair]:
        problem = problem_of_key_file(path)
        if problem:
            raise self._error(f"the private key {path} {problem[0]}", problem[1])
        try:
            return await asyncio.to_thread(_load_key_file, path)
        except LockedKeyError:
            pass
        except ValueError as error:
            hint = f"private_key: of {self._server} must name the file without .pub"
            raise self._error(f"{path} is not a private key: {error}", hint) from None
        pairs = await self._of_agent(agent, [path]) or await self._unlock(path)
        if pairs:
            return pairs
        why = "the passphrase does not fit" if self._progress.can_ask else "there is no terminal to ask for it"
        raise self._error(f"the private key {path} has a passphrase, and {why}", f"ssh-add {shlex.quote(str(path))}")

    async def _load_usual(self, path: Path) -> list[asyncssh.SSHKeyPair]:
        """Load a key of ~/.ssh where there is one; what ssh would leave out is left out with a word."""
        problem = problem_of_key_file(path)
        if problem == MISSING or path.suffix == ".pub":
            return []
        if problem:
            self._progress.notes.append(f"the private key {path} {problem[0]}")
            return []
        try:
            return await asyncio.to_thread(_load_key_file, path)
        except LockedKeyError:
            self._locked.append(path)
        except ValueError as error:
            self._progress.notes.append(f"{path} is not a private key: {error}")
        return []

    async def _unlock(self, path: Path) -> list[asyncssh.SSHKeyPair]:
        pairs = await self._passwords.unlock(path, self._passphrases, partial(asyncio.to_thread, _load_key_file, path))
        if not pairs:
            self._progress.notes.append(f"the private key {path} has a passphrase")
        return pairs

    async def _of_agent(
        self, agent: asyncssh.SSHAgentClient | None, only: Sequence[Path] | None
    ) -> list[asyncssh.SSHKeyPair]:
        wanted = None if only is None else [data for path in only if (data := _public_data(path))]
        if agent is None or wanted == []:
            return []
        try:
            async with asyncio.timeout(login_messages.CONNECT_SECONDS):
                return list(await agent.get_keys(wanted))
        except (OSError, ValueError, asyncssh.Error) as error:
            self._progress.notes.append(f"the ssh agent does not answer ({error})")
            return []

    def _error(self, what: str, hint: str) -> LoginError:
        return LoginError(f"{self._server}: {what}", hint=hint, server=self._server)


@asynccontextmanager
async def _agent_of(progress: Progress) -> AsyncIterator[asyncssh.SSHAgentClient | None]:
    """Connect to the ssh agent for the time of a login; one that does not answer is as none."""
    path = progress.endpoint.identity.agent
    agent = None
    if path:
        try:
            async with asyncio.timeout(login_messages.CONNECT_SECONDS):
                agent = await asyncssh.connect_agent(path)
        except (OSError, asyncssh.Error) as error:
            progress.notes.append(f"the ssh agent at {path} does not answer ({error})")
    try:
        yield agent
    finally:
        if agent is not None:
            agent.close()


async def _log_in_through(jumps: Sequence[Endpoint], endpoint: Endpoint, surroundings: Surroundings) -> Connection:
    """Log in to each jump host in turn and last to the endpoint; the key of each is checked like any other."""
    tunnel: Connection | None = None
    for number, jump in enumerate(jumps, 1):
        way = tuple(f"{before.username}@{before.address}" for before in jumps[:number])
        tunnel = await surroundings.jumps.get(way, partial(_log_in_patiently, jump, surroundings, tunnel))
    return await _log_in_patiently(endpoint, surroundings, tunnel)


async def _log_in_patiently(endpoint: Endpoint, surroundings: Surroundings, tunnel: Connection | None) -> Connection:
    """Log in; try again only where the server hung up before it knew who we are: it is busy, or refuses us a while."""
    turn = surroundings.logins.setdefault((tunnel, endpoint.address), asyncio.Semaphore(LOGINS_AT_ONCE))
    for pause in (*PAUSES, None):
        connection = Connection(endpoint, surroundings)
        try:
            async with turn:
                await connection.log_in(tunnel)
        except HungUpError as error:
            if pause is None:
                raise ConnectError(error.message, hint=error.hint, server=error.server) from None
            if pause > TOLD_PAUSE:
                surroundings.rules.notice(endpoint.server, f"{error.message}; {error.hint}; trying again")
            await asyncio.sleep(pause * random.uniform(*JITTER))  # noqa: S311 - only a delay
        else:
            return connection
    raise AssertionError


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


def resolve_way(server: Server) -> list[Endpoint]:
    """Return the jump hosts to a server, the nearest first, and the server."""
    identity = Identity(private_key=server.private_key, password=server.password, password_env=server.password_env)
    wanted = _wanted(server.name, server.hostname, server.username, server.port, identity)
    way = [_resolve(replace(wanted, is_listed=server.is_listed))]
    jumps, seen = list(way[0].jumps), [""]
    while jumps:
        jump = jumps.pop()
        if jump in seen:
            text = f"{server.name}: ProxyJump of ~/.ssh/config runs in a circle: {', '.join([*seen[1:], jump])}"
            raise ConnectError(text, server=server.name)
        seen.append(jump)
        way.insert(0, _resolve_jump(server.name, jump))
        jumps = jumps or list(way[0].jumps)
    return way


def _resolve_jump(server: str, jump: str) -> Endpoint:
    split = _split_jump(jump)
    if split is None:
        raise ConnectError(f"{server}: ProxyJump of ~/.ssh/config is not understood: {jump!r}", server=server)
    user, host, port = split
    return _resolve(replace(_wanted(server, host, user, port, Identity()), is_jump=True))


def _wanted(server: str, alias: str, username: str | None, port: int | None, identity: Identity) -> Endpoint:
    return Endpoint(
        server=server,
        is_jump=False,
        alias=alias,
        host=alias,
        port=port or 0,
        username=username or "",
        jumps=(),
        trust=Trust((), ()),
        identity=identity,
    )


def _resolve(wanted: Endpoint) -> Endpoint:
    """Fill in what ``~/.ssh/config`` says, behind what is configured; username "" and port 0 are not configured."""
    file = Path.home() / ".ssh" / "config"
    files = (file,) if os.access(file, os.R_OK) else ()
    try:
        settings = _load_config(wanted, files)
    except (OSError, ValueError) as error:
        raise ConnectError(f"{wanted.title}: {file} cannot be used: {error}", server=wanted.server) from None
    host = str(settings.get("Hostname", wanted.alias))
    port = cast("int", settings.get("Port", DEFAULT_PORT))
    jumps = cast("str | None", settings.get("ProxyJump"))
    default_username = getpass.getuser() if wanted.is_jump else DEFAULT_USERNAME
    return replace(
        wanted,
        host=host,
        port=port,
        username=str(settings.get("User") or default_username),
        jumps=tuple(jump.strip() for jump in jumps.split(",")) if jumps else (),
        trust=_trust_of(settings, lookup_names(host, port, cast("str | None", settings.get("HostKeyAlias")))),
        identity=_identity_of(settings, wanted.identity),
        config_files=files,
        chooses_ciphers=bool(settings.get("Ciphers")),
    )


def _load_config(wanted: Endpoint, files: tuple[Path, ...]) -> SSHClientConfig:
    def load(*, final: bool) -> SSHClientConfig:
        arguments = (getpass.getuser(), wanted.username or (), wanted.alias, wanted.port or ())
        return cast("SSHClientConfig", _UserConfig.load(None, list(files), False, False, final, *arguments))

    settings = load(final=False)
    return load(final=True) if settings.has_match_final() else settings


def _trust_of(settings: SSHClientConfig, names: tuple[str, ...]) -> Trust:
    def paths(option: str, *default: str) -> list[Path]:
        found = cast("Sequence[str]", settings.get(option, default))
        return [Path(name).expanduser() for name in found]

    revoked = cast("str | None", settings.get("RevokedHostKeys"))
    has_command = settings.get("KnownHostsCommand") is not None
    strict = str(settings.get("StrictHostKeyChecking", "")).lower() in {"yes", "true"}
    return Trust(
        names=names,
        files=(
            *paths("UserKnownHostsFile", "~/.ssh/known_hosts", "~/.ssh/known_hosts2"),
            *paths("GlobalKnownHostsFile", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
        ),
        revoked=Path(revoked).expanduser() if revoked else None,
        strict=strict or has_command,
        ignored=("KnownHostsCommand",) if has_command else (),
        chooses_algorithms=bool(settings.get("HostKeyAlgorithms")),
    )


def _identity_of(settings: SSHClientConfig, configured: Identity) -> Identity:
    files = cast("Sequence[str]", settings.get("IdentityFile") or [f"~/.ssh/{name}" for name in DEFAULT_KEYS])
    agent = cast("str | None", settings.get("IdentityAgent", "SSH_AUTH_SOCK"))
    if agent == "SSH_AUTH_SOCK":
        agent = os.environ.get("SSH_AUTH_SOCK")
    return replace(
        configured,
        files=tuple(Path(name).expanduser() for name in files),
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


def problem_of_key_file(path: Path) -> tuple[str, str] | None:
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
    key = _public_half(path)
    return None if key is None else key.public_data


def _public_half(path: Path) -> asyncssh.SSHKey | None:
    for candidate in (path, path.with_name(path.name + ".pub")):
        with suppress(OSError, ValueError):
            return asyncssh.read_public_key(str(candidate))
    return None


def new_key_pair(comment: str, passphrase: str | None) -> tuple[bytes, bytes]:
    """Make an ed25519 key; return its private file and its public line."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    # As ssh-keygen has it: each login pays for the rounds.
    private = key.export_private_key(
        "openssh", passphrase or None, cipher_name="aes256-ctr", rounds=24, ignore_few_rounds=True
    )
    return private, key.export_public_key("openssh")


def public_key_of(path: Path) -> HostKey | None:
    """Return the public half of a key file, which needs no passphrase; None when it cannot be read."""
    key = _public_half(path)
    return None if key is None else _host_key(key)


async def public_key_of_agent(path: str) -> HostKey | None:
    """Return the public half of the first key that the ssh agent offers; None without one."""
    try:
        async with asyncio.timeout(login_messages.CONNECT_SECONDS), asyncssh.connect_agent(path) as agent:
            keys = await agent.get_keys()
    except (OSError, ValueError, asyncssh.Error):
        return None
    return next((HostKey(key.get_algorithm(), key.public_data) for key in keys if not key.has_cert), None)


def _note_signatures(keys: Sequence[asyncssh.SSHKeyPair], progress: Progress) -> None:
    """Have keys tell when they sign: a server asks for a signature only of a key that it takes."""
    for key in keys:
        for name in ("sign", "sign_async"):
            if sign := getattr(key, name, None):
                setattr(key, name, partial(_sign, sign, key, progress))


def _sign(sign: Callable[[bytes], Any], key: asyncssh.SSHKeyPair, progress: Progress, data: bytes) -> Any:  # noqa: ANN401
    progress.method = key_name(key.algorithm.decode("ascii", "replace"))
    return sign(data)


def _host_key(key: asyncssh.SSHKey) -> HostKey:
    return HostKey(key.get_algorithm(), key.public_data)


def _import_key(key: HostKey) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.import_public_key(key.text)
    except asyncssh.KeyImportError:
        return None


def _send_no_fillers(connection: asyncssh.SSHClientConnection | None) -> None:
    """Leave out the empty packet that asyncssh puts before each one.

    It hides a weakness of CBC ciphers (RFC 4251, 9.3.1), which those here do not have; OpenSSH sends none either.
    """
    if connection is None or connection.get_extra_info("send_cipher") not in WITHOUT_FILLERS:
        return
    send_packet = connection.send_packet

    def send(pkttype: int, *args: bytes, handler: Any = None) -> None:  # noqa: ANN401 - a private type
        if pkttype != MSG_IGNORE:
            send_packet(pkttype, *args, handler=handler)

    connection.send_packet = send  # type: ignore[method-assign]


def _acknowledge_now(connection: asyncssh.SSHClientConnection | None) -> None:
    """Let Linux acknowledge what came, instead of 40 ms later; until then sshd holds back what it says next."""
    link = connection.get_extra_info("socket") if connection is not None else None
    if link is not None and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


# Every error of the library and of the system crosses this line; a bug of ours does not.
FOREIGN = (
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
def explained(connection: Connection) -> Iterator[None]:
    """Turn foreign errors into ours, with the server's name, the value that is wrong and what to do."""
    try:
        yield
    except FOREIGN as error:
        if connection.progress.stage is Stage.READY and isinstance(error, asyncssh.ChannelOpenError):
            raise  # no failure: the session waits for its turn
        raise (connection.refusal or explain(error, connection.progress)) from None


def explain(error: Exception, progress: Progress) -> RemoteToolError:
    """Return our error for one of asyncssh or of the system."""
    if progress.stage is Stage.READY:
        return lost(progress.endpoint.server, error)
    if isinstance(error, OSError):
        return progress.system_error(error)
    if isinstance(error, asyncssh.ConnectionLost):
        return progress.hung_up(error)
    return _explain_login(error, progress) or _explain_protocol(error, progress)


def _explain_login(error: Exception, progress: Progress) -> LoginError | None:
    if "Too many authentication failures" in str(error):  # the code is shared with other reasons
        return progress.too_many_failures()
    if isinstance(error, asyncssh.PermissionDenied):
        return progress.not_let_in()
    if isinstance(error, asyncssh.PasswordChangeRequired):
        return progress.login_error("the password has expired")
    if isinstance(error, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        return progress.login_error(f"a key cannot be used: {error}")
    return None


def _explain_protocol(error: Exception, progress: Progress) -> ConnectError:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return progress.untrusted_host(error)
    if isinstance(error, asyncssh.ChannelOpenError):
        return progress.unreachable_from_jump(error)
    return progress.no_ssh(error)


def _refused(server: str, refusal: SessionRefusedError) -> ConnectError:
    return ConnectError(
        f"{server}: the server opens no session: {printable(str(refusal))}",
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
