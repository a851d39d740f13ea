"""The host key policy of a command, and confirmation of new keys."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import HostKeyError
from remote_tool.transport.prompter import Prompter
from remote_tool.transport.ssh.host_keys.entries import HostKey, UnusableFileError
from remote_tool.transport.ssh.host_keys.known_hosts import Answer, Reader, Verdict, note_for
from remote_tool.transport.ssh.host_keys.record import accept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.model import HostKeyPolicy
    from remote_tool.transport.ssh.endpoint import Endpoint
    from remote_tool.transport.ssh.host_keys.entries import Entry

NOTHING_SENT = "so no password was sent to it"


@dataclass(frozen=True)
class NewKey:
    """A presented key that is in no file."""

    endpoint: Endpoint
    key: HostKey

    @property
    def name(self) -> str:
        """The host's name for the record of its key."""
        return self.endpoint.trust.names[0]

    @property
    def note(self) -> str:
        """The server's comment; empty for a jump host."""
        return "" if self.endpoint.is_jump else note_for(self.endpoint.server, self.endpoint.alias)

    def __str__(self) -> str:
        return f"{self.endpoint.title} ({self.endpoint.address}): {self.key.kind} {self.key.fingerprint}"


class UnconfirmedKeyError(HostKeyError):
    """A key is new and must be confirmed before continuing; nothing secret was sent.

    Attributes:
        new: The key.
    """

    def __init__(self, new: NewKey, why: str) -> None:
        endpoint, key = new.endpoint, new.key
        super().__init__(
            f"The host key of {endpoint.title} ({endpoint.address}) is new, {why}: {key.kind} {key.fingerprint}",
            hint="If this is the server's own fingerprint, run the command again with --accept-new-keys",
            server=endpoint.server,
        )
        self.new = new


class HostKeyRules:
    """The policy for all hosts of a command.

    Args:
        file: New keys are recorded here; read besides the user's own files.
        policy: How to treat unknown hosts.
        notice: Reports a message about a server.
        prompter: Asks about new keys.
        servers: The configured hostnames by server name: keys of others are dropped when another
            server takes their place.
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
        self._shown: dict[str, NewKey] = {}
        self._one_at_a_time = asyncio.Lock()

    def is_forgotten(self, entry: Entry) -> bool:
        """Return whether a line is ours and its server has left the configuration."""
        return entry.file == self.file and entry.note != "" and entry.note not in self._notes

    def note(self, new: NewKey) -> None:
        """Store a presented key for :meth:`confirm_shown`."""
        if not new.endpoint.is_jump:
            self._shown[new.endpoint.server] = new

    def record(self, new: NewKey) -> Answer:
        """Record a new key and report it, unless it has been recorded meanwhile.

        Raises:
            HostKeyError: The file cannot be written.
        """
        endpoint = new.endpoint
        try:
            answer = accept(
                self.file,
                new.name,
                new.key,
                hash_name=endpoint.trust.hashes_names,
                note=new.note,
                is_forgotten=lambda entry: self.is_forgotten(entry) and entry.key != new.key,
            )
        except UnusableFileError as error:
            raise HostKeyError(f"{endpoint.title}: {error}", server=endpoint.server) from None
        if answer.verdict is Verdict.NEW:
            self.recorded.add((new.name, new.key))
            self.notice(endpoint.server, f"new host key of {endpoint.address} accepted: {new.key.fingerprint}")
        return answer

    async def confirm(self, keys: Sequence[NewKey]) -> bool:
        """Ask one question about new keys, and record them if confirmed."""
        async with self._one_at_a_time:
            asked = [new for new in keys if (new.name, new.key) not in self.recorded]
            if asked and not await self._prompter.confirm(_question(asked)):
                return False
            for new in asked:
                self.record(new)
            return True

    async def confirm_shown(self, servers: Iterable[str]) -> dict[str, HostKeyError]:
        """Ask one question about the new keys of these servers, if they may be sent a password.

        Returns:
            The error of each server whose key was not confirmed.
        """
        shown = [self._shown[server] for server in servers if server in self._shown]
        keys = [
            new for new in shown if self._prompter.can_ask or new.endpoint.identity.configured_password() is not None
        ]
        if not keys or await self.confirm(keys):
            return {}
        return {new.endpoint.server: UnconfirmedKeyError(new, NOTHING_SENT) for new in keys}


def _question(keys: Sequence[NewKey]) -> str:
    shown = "\n".join(f"  {new}" for new in keys)
    if len(keys) == 1:
        return f"New host key:\n{shown}\nDo you trust it?"
    return f"New host keys:\n{shown}\nDo you trust them?"
