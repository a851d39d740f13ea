"""The rules of a command for host keys, and the confirmation of new keys."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import HostKeyError
from remote_tool.transport.prompter import Prompter
from remote_tool.transport.ssh.host_keys.entries import HostKey, UnusableFileError
from remote_tool.transport.ssh.host_keys.known_hosts import CheckResult, Reader, Verdict, note_for
from remote_tool.transport.ssh.host_keys.record import accept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.model import HostKeyPolicy
    from remote_tool.transport.ssh.endpoint import Endpoint
    from remote_tool.transport.ssh.host_keys.entries import KnownHostsEntry

NOTHING_SENT = "so no password was sent to it"


@dataclass(frozen=True)
class NewKey:
    """A host key that is in no file."""

    endpoint: Endpoint
    key: HostKey

    @property
    def name(self) -> str:
        """The name under which the key is recorded."""
        return self.endpoint.trust.names[0]

    @property
    def note(self) -> str:
        """The comment in its line; empty for a jump host."""
        return "" if self.endpoint.is_jump else note_for(self.endpoint.server, self.endpoint.alias)

    def __str__(self) -> str:
        return f"{self.endpoint.title} ({self.endpoint.address}): {self.key.kind} {self.key.fingerprint}"


class UnconfirmedKeyError(HostKeyError):
    """A key is new and must be confirmed before continuing; nothing secret was sent.

    Attributes:
        new: The key.
    """

    def __init__(self, new: NewKey, reason: str) -> None:
        endpoint, key = new.endpoint, new.key
        super().__init__(
            f"The host key of {endpoint.title} ({endpoint.address}) is new, {reason}: {key.kind} {key.fingerprint}",
            hint="If this is the server's own fingerprint, run the command again with --accept-new-keys",
            server=endpoint.server,
        )
        self.new = new


class HostKeyRules:
    """The rules for the keys of all hosts of a command.

    Args:
        file: Our own known_hosts file, for new keys; the user's files are only read.
        policy: The policy for unknown hosts.
        notice: Reports a message about a server.
        prompter: Asks about new keys.
        servers: The configured hostnames by server name; the key of any other server may be replaced.
    """

    def __init__(
        self,
        file: Path,
        policy: HostKeyPolicy,
        notice: Callable[[str, str], None],
        prompter: Prompter | None = None,
        servers: Mapping[str, str] | None = None,
    ) -> None:
        self._notes = {note_for(name, hostname) for name, hostname in (servers or {}).items()}
        self.file = file
        self.policy = policy
        self.notice = notice
        self.reader = Reader(lambda text: notice("", text))
        self.recorded: set[tuple[str, HostKey]] = set()
        self._prompter = prompter or Prompter(None)
        self._unconfirmed: dict[str, NewKey] = {}
        self._one_at_a_time = asyncio.Lock()

    def is_forgotten(self, entry: KnownHostsEntry) -> bool:
        """Return whether a line is ours and its server has left the configuration."""
        return entry.file == self.file and entry.note != "" and entry.note not in self._notes

    def add_unconfirmed(self, new: NewKey) -> None:
        """Store a new key for :meth:`confirm_stored`."""
        if not new.endpoint.is_jump:
            self._unconfirmed[new.endpoint.server] = new

    def record(self, new: NewKey) -> CheckResult:
        """Record a new key and report it, unless another process has recorded it meanwhile.

        Raises:
            HostKeyError: The file cannot be written.
        """
        endpoint = new.endpoint
        try:
            result = accept(
                self.file,
                new.name,
                new.key,
                hashes_name=endpoint.trust.hashes_names,
                note=new.note,
                is_forgotten=lambda entry: self.is_forgotten(entry) and entry.key != new.key,
            )
        except UnusableFileError as error:
            raise HostKeyError(f"{endpoint.title}: {error}", server=endpoint.server) from None
        if result.verdict is Verdict.NEW:
            self.recorded.add((new.name, new.key))
            self.notice(endpoint.server, f"new host key of {endpoint.address} accepted: {new.key.fingerprint}")
        return result

    async def confirm(self, keys: Sequence[NewKey]) -> bool:
        """Ask one question about new keys, and record them if confirmed."""
        async with self._one_at_a_time:
            unconfirmed = [new for new in keys if (new.name, new.key) not in self.recorded]
            if unconfirmed and not await self._prompter.confirm(_question(unconfirmed)):
                return False
            for new in unconfirmed:
                self.record(new)
            return True

    async def confirm_stored(self, servers: Iterable[str]) -> dict[str, HostKeyError]:
        """Ask one question about the new keys of these servers, if they may be sent a password.

        Returns:
            The error of each server whose key was not confirmed.
        """
        stored = [self._unconfirmed[server] for server in servers if server in self._unconfirmed]
        keys = [
            new for new in stored if self._prompter.can_ask or new.endpoint.identity.configured_password() is not None
        ]
        if not keys or await self.confirm(keys):
            return {}
        return {new.endpoint.server: UnconfirmedKeyError(new, NOTHING_SENT) for new in keys}


def _question(keys: Sequence[NewKey]) -> str:
    lines = "\n".join(f"  {new}" for new in keys)
    if len(keys) == 1:
        return f"New host key:\n{lines}\nDo you trust it?"
    return f"New host keys:\n{lines}\nDo you trust them?"
