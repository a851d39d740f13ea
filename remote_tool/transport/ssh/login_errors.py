"""Error messages for failed logins: what happened, with the value, and what to do."""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from remote_tool.errors import MOST_FILES, ConnectError, ConnectionLostError, HostKeyError, LoginError
from remote_tool.transport.ssh.endpoint import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.transport.ssh.endpoint import Endpoint

CONNECT_SECONDS = 15.0
LOGIN_SECONDS = 30.0
# Output of a ProxyCommand that is not the cause; a busy server causes two of these.
_NO_REASON = re.compile(r"SSH-|Warning: |\*\*|Exceeded MaxStartups|Not allowed at this time")
# The system found no route or no source address.
_NO_WAY = {errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.ENETDOWN}


class Stage(IntEnum):
    """The stage of a connection."""

    CONNECTING = 1
    GREETING = 2
    LOGGING_IN = 3
    READY = 4


class HungUpError(ConnectError):
    """The server closed the connection before the login began; a retry may succeed."""


@dataclass
class Progress:
    """The state of a login in progress.

    Attributes:
        endpoint: The destination.
        can_ask: Whether there is a terminal.
        stage: The current stage.
        methods: The server's authentication methods.
        notes: Failed attempts, a clause each.
        method: The last accepted method, such as ``ed25519 key``.
        signer: The key that signed last.
        signing_seconds: How long the ssh agent took for that.
        greeting: The beginning of a ProxyCommand's output.
        refusal: Our own reason not to log in, of which the library's error is only a consequence.
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
        if number in _NO_WAY:
            hint = f"Does this machine have a route to it (VPN, IPv6, BindAddress)? {check}"
        return self._error(f"{self._where} cannot be reached: {reason}", hint)

    def hung_up(self, error: Exception) -> ConnectError:
        """Explain a connection that the server closed."""
        endpoint = self.endpoint
        if self.stage >= Stage.LOGGING_IN:
            text = f"{self._where} closed the connection during the login as {endpoint.username}: {error}"
            # A connection lost at this moment is like one lost later: callers that can retry do.
            return ConnectionLostError(text, hint=f"Try: {endpoint.ssh_command}", server=endpoint.server)
        lines = self.greeting.decode(errors="replace").splitlines()
        said = [printable(line) for line in lines if line.strip() and not _NO_REASON.match(line)]
        if said:
            text = f"{self._where} cannot be reached through its ProxyCommand: {said[-1]}"
            return self._error(text, f"Check ProxyCommand in ~/.ssh/config, or try: {endpoint.ssh_command}")
        return HungUpError(
            f"{self._where} closed the connection before the login: {error}",
            hint="It may be busy with other logins (MaxStartups), "
            "or reject this machine for a while after failed logins",
            server=endpoint.server,
        )

    def not_let_in(self) -> LoginError:
        """Explain a refused login by all that was tried."""
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

    def login_error(self, what: str) -> LoginError:
        """Explain another reason for a refused login."""
        endpoint = self.endpoint
        text = f"Cannot log in to {endpoint.title} ({endpoint.address}) as {endpoint.username}: {what}"
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

    def no_ssh(self, error: Exception) -> ConnectError:
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
    """Return an error's number, which asyncio hides after trying several addresses."""
    if error.errno is not None:
        return error.errno
    numbers = set(re.findall(r"\[Errno (\d+)\]", str(error)))
    return int(numbers.pop()) if len(numbers) == 1 else None
