"""The remembered groups of servers that share a project folder.

They affect only the order of work: what a server needs is always checked on the server.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.system.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.model import Config

_LONGEST_MEMORY = 1024 * 1024


@dataclass(frozen=True)
class Groups:
    """The groups of servers that share a project folder.

    Attributes:
        members: The group of each server that is in one.
    """

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def recall(cls, config: Config) -> Groups:
        """Return the configured groups, or the groups that were found last; an unreadable record means none."""
        if config.shared is not None:
            others = tuple(name for name in config.usual_servers if not config.servers[name].localhost)
            return cls.of_lists([others] if config.shared else [])
        try:
            with config.local.sharing.open("rb") as file:
                known = json.loads(file.read(_LONGEST_MEMORY))
            return cls.of_lists([tuple(map(str, group)) for group in known["groups"]])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return cls()

    @classmethod
    def of_lists(cls, groups: Iterable[tuple[str, ...]]) -> Groups:
        """Create groups from lists of servers; a single server is not a group."""
        return cls({server: group for group in groups if len(group) > 1 for server in group})

    def of(self, server: str) -> tuple[str, ...]:
        """Return the group of a server, with the server itself."""
        return self.members.get(server, (server,))

    def turns(self) -> Turns:
        """Return a lock for each group, which lets its servers work one after the other."""
        return Turns(self)

    def with_found(self, found: Sequence[tuple[str, ...]]) -> Groups:
        """Return the groups after some servers were tested; the others keep their known groups."""
        tested, groups = {name for group in found for name in group}, [list(group) for group in found]
        for known in dict.fromkeys(self.members.values()):
            rest = [name for name in known if name not in tested]
            partner = next((group for group in groups if group[0] in known), None)
            if partner is None:
                groups.append(rest)
            else:
                partner += rest
        return Groups.of_lists(map(tuple, groups))

    def remember(self, config: Config) -> None:
        """Record the groups that were found, if they have changed."""
        if config.shared is not None or self == Groups.recall(config):
            return
        groups = [list(group) for group in dict.fromkeys(self.members.values())]
        config.local.logs.mkdir(parents=True, exist_ok=True)
        write_atomically(config.local.sharing, json.dumps({"groups": groups}).encode() + b"\n")


class Turns:
    """A lock for each group; a server that is in no group has a lock of its own."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}

    def __getitem__(self, server: str) -> asyncio.Lock:
        return self._locks.setdefault(self._groups.of(server), asyncio.Lock())
