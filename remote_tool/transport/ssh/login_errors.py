"""Convert the errors of asyncssh and of the system to ours: the cause with its value, and the remedy."""

from __future__ import annotations

import errno
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from remote_tool.errors import MOST_FILES, ConnectError, ConnectionLostError, HostKeyError, LoginError
from remote_tool.transport.ssh.channel import lost
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.transport.ssh.library import asyncssh

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.transport.ssh.endpoint import Endpoint

CONNECT_SECONDS = 15.0
LOGIN_SECONDS = 30.0
# Lines of a ProxyCommand that do not name the cause of a failure; the last two come from a busy server.
_NO_REASON = re.compile(r"SSH-|Warning: |\*\*|Exceeded MaxStartups|Not allowed at this time")
# The system found no route or no source address.
_NO_ROUTE = {errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.ENETDOWN}

# All other exceptions are bugs of ours and are not caught.
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


class Stage(IntEnum):
    """The stages of a connection, in their order."""

    CONNECTING = 1
    GREETING = 2
    LOGGING_IN = 3
    READY = 4


class HungUpError(ConnectError):
    """The server closed the connection before the login began; a retry may succeed."""


@dataclass
class LoginProgress:
    """The state of a login, from which its errors are explained.

    Attributes:
        endpoint: The destination.
        can_ask: Whether there is a terminal.
        stage: The stage that it has reached.
        methods: The server's authentication methods.
        notes: Clauses about failed attempts.
        method: The last accepted method, such as ``ed25519 key``.
        signer: The key that signed last.
        signing_seconds: The time that the ssh agent took for the signature.
        greeting: The beginning of a ProxyCommand's output.
        refusal: Our own reason not to log in; the library's error only follows from it.
    """

    endpoint: Endpoint
    can_ask: bool
    stage: Stage = Stage.CONNECTING
    methods: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    method: str = ""
    signer: object = None
    signing_seconds: float = 0.0
    greeting: bytes = field(default=b"", repr=False)
    refusal: RemoteToolError | None = None

    def system_error(self, error: OSError) -> ConnectError:
        """Explain an error of the operating system, including timeouts."""
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return self.hung_up(error)
        if isinstance(error, TimeoutError):
            return self._timed_out()
        endpoint = self.endpoint
        check = f"Check {endpoint.settings('hostname', 'port')}"
        if isinstance(error, socket.gaierror):
            return self._error(f"{endpoint.title}: unknown host name {endpoint.host!r} ({error.strerror})", check)
        number = _errno_of(error)
        if number == errno.ECONNREFUSED:
            return self._error(f"{self._where} refused the connection", f"Is sshd running there? {check}")
        reason = os.strerror(number) if number else printable(str(error))
        hint = f"ulimit -n {MOST_FILES}" if number == errno.EMFILE else check
        if number in _NO_ROUTE:
            hint = f"Does this machine have a route to it (VPN, IPv6, BindAddress)? {check}"
        return self._error(f"{self._where} cannot be reached: {reason}", hint)

    def hung_up(self, error: Exception) -> ConnectError:
        """Explain a connection that the server closed."""
        endpoint = self.endpoint
        if self.stage >= Stage.LOGGING_IN:
            text = f"{self._where} closed the connection during the login as {endpoint.username}: {error}"
            # Callers that retry after a lost connection must retry after this one, too.
            return ConnectionLostError(text, hint=f"Try: {endpoint.ssh_command}", server=endpoint.server)
        lines = self.greeting.decode(errors="replace").splitlines()
        reasons = [printable(line) for line in lines if line.strip() and not _NO_REASON.match(line)]
        if reasons:
            text = f"{self._where} cannot be reached through its ProxyCommand: {reasons[-1]}"
            return self._error(text, f"Check ProxyCommand in ~/.ssh/config, or try: {endpoint.ssh_command}")
        return HungUpError(
            f"{self._where} closed the connection before the login: {error}",
            hint="It may be busy with other logins (MaxStartups), "
            "or reject this machine for a while after failed logins",
            server=endpoint.server,
        )

    def access_denied(self) -> LoginError:
        """Explain a refused login by all failed attempts."""
        endpoint = self.endpoint
        clauses = [f"Cannot log in to {endpoint.title} ({endpoint.address}) as {endpoint.username}"]
        if self.methods:
            clauses.append(f"it accepts {', '.join(self.methods)}")
        if endpoint.identity.private_key is not None and "publickey" in self.methods:
            clauses.append(f"it refused the key {endpoint.identity.private_key}")
        text = "; ".join([*clauses, *self.notes, *self._notes_on_password()])
        hint = f"Check {endpoint.settings('username', 'private_key')}, or try: {endpoint.ssh_command}"
        return LoginError(text, hint=hint, server=endpoint.server)

    def too_many_failures(self) -> LoginError:
        """Explain that the server refused further keys."""
        endpoint = self.endpoint
        return LoginError(
            f"Cannot log in to {endpoint.title} ({endpoint.address}) as {endpoint.username}: too many authentication "
            "failures, because more keys were offered than it allows",
            hint=f"Set {endpoint.settings('private_key')}; then only that key is offered",
            server=endpoint.server,
        )

    def login_error(self, reason: str) -> LoginError:
        """Explain a refused login by another reason."""
        endpoint = self.endpoint
        text = f"Cannot log in to {endpoint.title} ({endpoint.address}) as {endpoint.username}: {reason}"
        return LoginError(text, hint=f"Try: {endpoint.ssh_command}", server=endpoint.server)

    def untrusted_host(self, error: Exception) -> HostKeyError:
        """Explain an untrusted host certificate."""
        endpoint = self.endpoint
        text = f"The host key of {endpoint.title} ({endpoint.address}) is not trusted: {printable(str(error))}"
        return HostKeyError(text, hint=f"Try: {endpoint.ssh_command}", server=endpoint.server)

    def unreachable_from_jump(self, error: Exception) -> ConnectError:
        """Explain that the jump host cannot reach the server."""
        endpoint = self.endpoint
        text = f"{endpoint.title}: its jump host cannot reach {endpoint.address}: {printable(str(error))}"
        return self._error(text, "Check ProxyJump in ~/.ssh/config")

    def no_common_protocol(self, error: Exception) -> ConnectError:
        """Explain that the two sides have no protocol in common."""
        endpoint = self.endpoint
        reason = printable(str(error)) or type(error).__name__
        text = f"No SSH connection to {endpoint.title} ({endpoint.address}): {reason}"
        return self._error(text, f"Try: {endpoint.ssh_command}")

    def bad_config(self, error: Exception) -> ConnectError:
        """Explain an invalid ssh_config."""
        return self._error(f"{self.endpoint.title}: ~/.ssh/config cannot be used: {error}", "")

    @property
    def _where(self) -> str:
        return f"{self.endpoint.title}: {self.endpoint.address}"

    def _timed_out(self) -> ConnectError:
        endpoint = self.endpoint
        if self.stage is Stage.CONNECTING:
            text = f"{self._where} did not answer within {CONNECT_SECONDS:g} s"
            hint = f"Is it on, and is the port open in its firewall? Check {endpoint.settings('hostname', 'port')}"
            return self._error(text, hint)
        text = f"{self._where} accepted the connection, but the login did not finish within {LOGIN_SECONDS:g} s"
        return self._error(text, f"Is it an SSH server? Try: {endpoint.ssh_command}")

    def _notes_on_password(self) -> list[str]:
        if not {"password", "keyboard-interactive"}.intersection(self.methods):
            return []
        identity = self.endpoint.identity
        if identity.configured_password() is not None:
            return ["it refused the password"]
        if identity.password_env:
            return [f"the password variable {identity.password_env} is not set"]
        return [] if self.can_ask else ["there is no terminal to ask for a password"]

    def _error(self, text: str, hint: str) -> ConnectError:
        return ConnectError(text, hint=hint, server=self.endpoint.server)


def _errno_of(error: OSError) -> int | None:
    """Return an error's number; after several addresses, asyncio has it only in the text."""
    if error.errno is not None:
        return error.errno
    numbers = set(re.findall(r"\[Errno (\d+)\]", str(error)))
    return int(numbers.pop()) if len(numbers) == 1 else None


@contextmanager
def explained(progress: LoginProgress) -> Iterator[None]:
    """Convert errors of asyncssh and of the system in this context to ours."""
    try:
        yield
    except FOREIGN as error:
        if progress.stage is Stage.READY and isinstance(error, asyncssh.ChannelOpenError):
            raise  # not a failure: the session waits for a free slot
        raise (progress.refusal or _explain(error, progress)) from None


def _explain(error: Exception, progress: LoginProgress) -> RemoteToolError:
    if progress.stage is Stage.READY:
        return lost(progress.endpoint.server, error)
    if isinstance(error, OSError):
        return progress.system_error(error)
    if isinstance(error, asyncssh.ConnectionLost):
        return progress.hung_up(error)
    return _explain_login(error, progress) or _explain_protocol(error, progress)


def _explain_login(error: Exception, progress: LoginProgress) -> LoginError | None:
    if "Too many authentication failures" in str(error):  # the code is shared with other reasons
        return progress.too_many_failures()
    if isinstance(error, asyncssh.PermissionDenied):
        return progress.access_denied()
    if isinstance(error, asyncssh.PasswordChangeRequired):
        return progress.login_error("the password has expired")
    if isinstance(error, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        return progress.login_error(f"a key cannot be used: {error}")
    return None


def _explain_protocol(error: Exception, progress: LoginProgress) -> ConnectError:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return progress.untrusted_host(error)
    if isinstance(error, asyncssh.ChannelOpenError):
        return progress.unreachable_from_jump(error)
    return progress.no_common_protocol(error)
