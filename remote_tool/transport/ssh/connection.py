"""An SSH connection: login, sessions and end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from remote_tool.errors import ConnectError, HostKeyError
from remote_tool.transport.host import MEBIBYTE, Login
from remote_tool.transport.ssh import login_errors, packets
from remote_tool.transport.ssh.channel import lost
from remote_tool.transport.ssh.client_keys import ClientKeys, connect_agent, track_signatures
from remote_tool.transport.ssh.context import Hop
from remote_tool.transport.ssh.host import SessionRefusedError
from remote_tool.transport.ssh.host_keys.check import HostKeyCheck
from remote_tool.transport.ssh.host_keys.rules import UnconfirmedKeyError
from remote_tool.transport.ssh.key_files import host_key_of, key_name
from remote_tool.transport.ssh.library import asyncssh
from remote_tool.transport.ssh.liveness import Liveness
from remote_tool.transport.ssh.login_errors import FOREIGN, LoginProgress, Stage, explained
from remote_tool.transport.ssh.passwords import LoginClock, Passwords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remote_tool.transport.host import UserTerminal
    from remote_tool.transport.ssh.channel import SshChannel
    from remote_tool.transport.ssh.context import ConnectionContext, JumpConnection
    from remote_tool.transport.ssh.endpoint import Endpoint
    from remote_tool.transport.ssh.host_keys.entries import HostKey

CLOSE_SECONDS = 1.0
WINDOW_BYTES = 8 * MEBIBYTE
PACKET_BYTES = 128 * 1024
LONGEST_GREETING = 64 * 1024
IUTF8 = 42  # RFC 8160

# ssh_config cannot override these.
FIXED_OPTIONS: dict[str, Any] = {
    "agent_path": None,  # our own connection to the agent gets only the keys to offer
    "agent_forwarding": False,
    "x11_forwarding": False,
    "x509_trusted_certs": None,
    "gss_host": None,
    "gss_kex": False,
    "gss_auth": False,
    "host_based_auth": False,
    "pkcs11_provider": None,
    "compression_algs": "none",
    "connect_timeout": None,  # ours differs before and after the greeting, and stops while the user types
    "login_timeout": 0,
    "command": None,
    "env": None,
    "send_env": None,
    "request_pty": False,
    "utf8_decode_errors": "replace",
}


class Connection(asyncssh.SSHClient):
    """One login; asyncssh calls most of its methods."""

    def __init__(self, endpoint: Endpoint, context: ConnectionContext) -> None:
        self.progress = LoginProgress(endpoint, context.prompter.can_ask)
        self._endpoint = endpoint
        self._clock = LoginClock()
        self._passwords = Passwords(endpoint, context.prompter, self._clock, context.common_passwords)
        self._keys = ClientKeys(self.progress, self._passwords, context)
        self._host_keys = HostKeyCheck(endpoint, context.rules)
        self.raw: asyncssh.SSHClientConnection | None = None
        self._tunnel: JumpConnection | None = None
        self._ended = False
        self._end_reason: Exception | None = None
        self._liveness: Liveness | None = None

    @property
    def alive(self) -> bool:
        """Return whether the connection is up, as far as known."""
        return not self._ended

    @property
    def login(self) -> Login:
        """The login of this connection."""
        key = self._host_keys.accepted
        return Login(
            username=self._endpoint.username,
            method=self.progress.method or "no key",
            host_key=f"{key_name(key.kind)} {key.fingerprint}" if key else "",
            is_new=self._host_keys.is_new,
        )

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The logins to the jump hosts and the server; empty unless all can be repeated without asking anybody."""
        before = self._tunnel.hops if self._tunnel is not None else ()
        key, key_source = self._host_keys.accepted, self._keys.source_of(self.progress.signer)
        if self.raw is None or key is None or key_source is None or (self._tunnel is not None and not before):
            return ()
        return (*before, Hop(self._endpoint, key, *key_source, cipher=str(self.raw.get_extra_info("send_cipher"))))

    async def log_in(self, tunnel: JumpConnection | None) -> None:
        """Connect, check the host key, log in, and record a new key.

        Raises:
            UnconfirmedKeyError: The key is new, and must be confirmed first.
            HungUpError: The server closed the connection before the login began.
            ConnectError: Any other failure.
        """
        self._tunnel = tunnel
        with explained(self.progress):
            async with connect_agent(self.progress) as agent:
                keys = await self._keys.load(agent)
                track_signatures(keys, self.progress)
                await self._connect(keys, tunnel)
        try:
            self._host_keys.record()
        except HostKeyError:
            await self.close()
            raise
        assert self.raw is not None
        packets.send_no_fillers(self.raw)
        self._liveness = Liveness(self.raw, self._endpoint.keepalive_seconds, self._endpoint.keepalive_count)
        self.progress.stage = Stage.READY

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Monitor whether the server responds; see :meth:`Liveness.watch`."""
        assert self._liveness is not None, "logged in"
        if self.alive:
            self._liveness.send_keepalives_every(seconds / 2)
        await self._liveness.watch(seconds, report)

    async def close(self) -> None:
        """Close the connection; wait at most a second for the server."""
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
        """Run the channel's command in a new session.

        Raises:
            SessionRefusedError: The server opens no more.
            ConnectError: The server gives no terminal.
            ConnectionLostError: The connection was lost.
        """
        if self.raw is None or self._ended:
            raise lost(self._endpoint.server, self._end_reason)
        try:
            with explained(self.progress):
                await self.raw.create_session(
                    lambda: cast("asyncssh.SSHClientSession[bytes]", channel),
                    channel.command,
                    encoding=None,
                    window=WINDOW_BYTES,
                    max_pktsize=PACKET_BYTES,
                    **_terminal_options(channel.terminal),
                )
        except asyncssh.ChannelOpenError as error:
            # A lost connection refuses sessions, too, just before its end is reported.
            await asyncio.sleep(0)
            if self._ended:
                raise lost(self._endpoint.server, self._end_reason or error) from None
            if error.code == asyncssh.OPEN_REQUEST_PTY_FAILED:
                raise _no_terminal(self._endpoint.server) from None
            raise SessionRefusedError(error.reason) from None

    async def _connect(self, keys: Sequence[asyncssh.SSHKeyPair], tunnel: JumpConnection | None) -> None:
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(login_errors.CONNECT_SECONDS) as timeout:
                with self._clock.controlling(timeout):
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
            "keepalive_interval": endpoint.keepalive_seconds,
            "keepalive_count_max": endpoint.keepalive_count,
        }
        if not endpoint.trust.chooses_algorithms:
            options["server_host_key_algs"] = self._host_keys.algorithms()
        if not endpoint.chooses_ciphers:
            options["encryption_algs"] = "^aes128-gcm@openssh.com"  # by far the fastest
        return options

    # Called by asyncssh, in this order

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Start the login timeout: the server has answered."""
        self.raw = conn
        self.progress.stage = Stage.GREETING
        if self._endpoint.has_proxy_command:
            packets.listen(conn, self._note_greeting)
        self._clock.restart(login_errors.LOGIN_SECONDS)

    def _note_greeting(self, data: bytes) -> None:
        """Keep the beginning of a ProxyCommand's output, which includes its stderr."""
        self.progress.greeting = (self.progress.greeting + data)[:LONGEST_GREETING]

    def _trusted_by_asyncssh(self, *_: object) -> tuple[Sequence[Any], ...]:
        """Give asyncssh no trusted keys, so that it passes every key to our own check.

        For certificates it gets the revoked keys: only asyncssh sees the key in a certificate.
        """
        imported = [_import_key(key) for key in self._host_keys.revoked_for_certificates()]
        return [], [], [key for key in imported if key is not None]

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Check the server's key, before anything secret is sent."""
        del host, addr, port
        try:
            self._host_keys.require(host_key_of(key))
        except HostKeyError as refusal:
            self.progress.refusal = refusal
            return False
        self._host_is_trusted()
        return True

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Check the authority that signed the server's key."""
        del host, addr, port
        if not self._host_keys.is_authority(host_key_of(key)):
            return False
        self._host_is_trusted()
        return True

    async def public_key_auth_requested(self) -> Sequence[asyncssh.SSHKeyPair] | None:
        """Offer the keys with a passphrase one by one, if no other key was accepted."""
        self._note_methods()
        keys = await self._keys.next_locked()
        track_signatures(keys or (), self.progress)
        return keys

    async def password_auth_requested(self) -> str | None:
        """Return the next password to try."""
        self._note_methods()
        if not self._may_answer():
            return None
        self.progress.method = "password"
        return await self._passwords.password()

    def kbdint_auth_requested(self) -> str | None:
        """Accept this method if there is a password or a user to ask."""
        self._note_methods()
        if not self._may_answer():
            return None
        self.progress.method = "password"
        return ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer the server's prompts."""
        del name, instructions, lang
        return await self._passwords.answers([text for text, _ in prompts])

    def debug_msg_received(self, msg: str, lang: str, always_display: bool) -> None:
        """Acknowledge sshd's small message after each login by key: its next packet waits for that."""
        del msg, lang, always_display
        if self.raw is not None:
            packets.acknowledge_now(self.raw)

    def connection_lost(self, exc: Exception | None) -> None:
        """Store why the connection has ended."""
        self._ended = True
        self._end_reason = exc

    def _may_answer(self) -> bool:
        """Return whether there is an answer, and it may be sent to this host."""
        if not self._passwords.can_answer:
            return False
        try:
            self._host_keys.require_confirmed()
        except UnconfirmedKeyError as refusal:
            self.progress.refusal = refusal
            return False
        return True

    def _host_is_trusted(self) -> None:
        self.progress.stage = max(self.progress.stage, Stage.LOGGING_IN)

    def _note_methods(self) -> None:
        if self.raw is not None and not self.progress.methods:
            self.progress.methods = self.raw.get_server_auth_methods()


def _terminal_options(terminal: UserTerminal | None) -> dict[str, Any]:
    if terminal is None:
        return {}
    return {
        "request_pty": "force",
        "term_type": terminal.kind,
        "term_size": (terminal.columns, terminal.rows),
        "term_modes": {IUTF8: 1},
    }


def _no_terminal(server: str) -> ConnectError:
    hint = f"Check PermitTTY in its sshd_config; or remote-tool run --server {server} --cmd COMMAND"
    return ConnectError(f"{server}: its sshd gives no terminal", hint=hint, server=server)


def _import_key(key: HostKey) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.import_public_key(key.text)
    except asyncssh.KeyImportError:
        return None
