"""Detect servers that share the project's folder, as on NFS, and let one of them work first.

A marker file, which one server writes and the other one sees, is the proof. This is apart from ``prepare.py`` because
it decides only about turns: the caller brings the work.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.errors import ConnectError, EnvironmentSetupError, RemoteCommandError
from remote_tool.workflows.prepare.steps import StepFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.transport.host import Host

# File systems of one kernel: two kernels with such a home have separate ones.
_LOCAL = frozenset(
    {"ext2/ext3", "xfs", "btrfs", "zfs", "tmpfs", "overlayfs", "f2fs", "jfs", "reiserfs", "ramfs", "bcachefs"}
)
# File systems with different inode numbers for one file on each machine.
_UNRELIABLE_INODES = ("fuse", "unknown")
# A network disk shows a new name at once, or after listing the folder has refreshed its cache.
_LOOKS = 8
_LOOK_PAUSE = 0.25
_TEST_SECONDS = 15.0


class _Folder(NamedTuple):
    """The facts about a folder that tell most folders apart without a test."""

    inode: str
    kind: str
    boot: str

    @classmethod
    def parse(cls, text: str) -> _Folder:
        inode, _, rest = text.partition("|")
        kind, _, boot = rest.partition("|")
        return cls(inode, kind.lower(), boot)

    def may_equal(self, other: _Folder) -> bool:
        """Return whether both may be the same folder."""
        if not self.inode or not other.inode:
            return False
        is_unreliable = any(folder.kind.startswith(_UNRELIABLE_INODES) for folder in (self, other))
        is_one_kernel = self.boot == other.boot
        are_local = self.kind in _LOCAL and other.kind in _LOCAL
        return (self.inode == other.inode or is_unreliable) and (is_one_kernel or not are_local)


@dataclass(frozen=True)
class _ProjectPath:
    """The home of a server, and the existing folders from there to the project."""

    home: str
    folders: tuple[_Folder, ...]

    @classmethod
    def of(cls, facts: ServerFacts) -> _ProjectPath:
        return cls(facts.home, tuple(map(_Folder.parse, facts.folders)))

    def may_be_shared(self, other: _ProjectPath) -> bool:
        """Return whether both may share the project's folder, or a parent of it."""
        # One of them may have been queried before the project's folder existed.
        return any(here.may_equal(there) for here, there in zip(self.folders, other.folders, strict=False))


class _SharingGroup:
    """Servers that share a folder: one works, and the others wait."""

    def __init__(self, host: Host, path: _ProjectPath) -> None:
        self.members = [host.name]
        self.leader = host
        self.path = path
        self.error: StepFailedError | None = None
        self.is_done = False
        self.lock = asyncio.Lock()


@dataclass(frozen=True)
class LeaderSlot:
    """The role of a server in its group.

    Attributes:
        follows: The server that has worked in this folder; None for the leader.
        has_waited: Whether others may have worked there since the facts of this server were queried.
    """

    follows: Host | None
    has_waited: bool

    @property
    def leader(self) -> str:
        """Return the leader's name, or empty."""
        return self.follows.name if self.follows else ""


class Sharing:
    """Groups servers by shared folder as they arrive, and lets one of each group work first."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._groups: list[_SharingGroup] = []

    @property
    def found(self) -> list[tuple[str, ...]]:
        """Return the groups of all arrived servers, in the order of the configuration."""
        order = list(self._config.servers)
        return [tuple(sorted(group.members, key=order.index)) for group in self._groups]

    @asynccontextmanager
    async def slot(self, host: Host, facts: ServerFacts) -> AsyncIterator[LeaderSlot]:
        """Wait for the server that works in this folder, or become the leader.

        If the leader loses its connection, or something is missing on it alone, the next server leads.

        Raises:
            EnvironmentSetupError: A step failed on the leader, and would fail again.
        """
        if self._config.servers[host.name].localhost:
            yield LeaderSlot(None, has_waited=False)  # its project is in no home folder of servers
            return
        group = await self._join(host, facts)
        has_waited = group.lock.locked() or group.is_done
        async with group.lock:
            is_leader = not group.is_done
            if is_leader:
                group.leader = host
                try:
                    yield LeaderSlot(None, has_waited)
                except StepFailedError as error:
                    group.error, group.is_done = error, True
                    raise
                group.is_done = True
        if is_leader:
            return
        if group.error is not None:
            raise _failed_on_leader(host.name, group.leader.name, group.error)
        yield LeaderSlot(group.leader, has_waited)

    async def _join(self, host: Host, facts: ServerFacts) -> _SharingGroup:
        """Add a server to the group that shares its folder, or to a new one."""
        path = _ProjectPath.of(facts)
        # Other servers may arrive during a test: the loop reaches groups that are added meanwhile.
        for group in self._groups:
            if await self._is_member(group, host, path):
                _require_one_path(host.name, path, group, self._config)
                group.members.append(host.name)
                return group
        self._groups.append(_SharingGroup(host, path))
        return self._groups[-1]

    async def _is_member(self, group: _SharingGroup, host: Host, path: _ProjectPath) -> bool:
        if self._config.shared is not None:
            return self._config.shared
        if not path.may_be_shared(group.path):
            return False
        try:
            return await shares_folder(group.leader, host, self._config)
        except (ConnectError, RemoteCommandError, TimeoutError):
            return False


async def shares_folder(writer: Host, reader: Host, config: Config) -> bool:
    """Return whether a server sees a file that another one writes into the project's folder; remove it afterwards.

    Raises:
        RemoteCommandError: The reader does not answer.
        TimeoutError: The writer does not answer.
    """
    name, secret = f"mark-{secrets.token_hex(16)}", secrets.token_hex(16)
    scripts = shlex.quote(config.remote.scripts)
    write = (
        f'cd "$HOME" && (umask 077; mkdir -p -- {scripts}) && cd -- {scripts} || exit 1\n'
        f"trap 'rm -f {name}' EXIT; trap 'exit 1' HUP PIPE TERM\n"
        f"(umask 077; printf %s {secret} > {name}) && echo written || exit 1\n"
        "while read -r _; do :; done\n"
    )
    look = (
        f'cd "$HOME" || exit 1; looks=0\n'
        f"while [ $looks -lt {_LOOKS} ]; do\n"
        f"    [ -f {scripts}/{name} ] && head -c 64 {scripts}/{name} && exit\n"
        f"    [ -d {scripts} ] || break\n"
        f"    ls {scripts} >/dev/null; looks=$((looks + 1)); sleep {_LOOK_PAUSE}\n"
        "done\n"
    )
    async with writer.open(write, label="write a marker") as channel:
        async with asyncio.timeout(_TEST_SECONDS):
            if not (await channel.read()).startswith(b"written"):
                return False
        answer = await reader.run(look, timeout=_TEST_SECONDS, limit=1024, check=False, label="look for the marker")
        await channel.write_eof()
        # If removing it takes longer, the script continues without us.
        with suppress(TimeoutError):
            async with asyncio.timeout(_TEST_SECONDS):
                await channel.wait()
    return answer.stdout == secret.encode()


def _require_one_path(server: str, path: _ProjectPath, group: _SharingGroup, config: Config) -> None:
    """Refuse a shared folder that has another path on each server: installed files contain the path."""
    if path.home != group.path.home:
        here, there = (f"{home}/{config.remote.project}" for home in (path.home, group.path.home))
        raise EnvironmentSetupError(
            f"{server} shares the project's folder with {group.leader.name}, but at another path: {here}, not {there}",
            hint="mount it at the same path on both, or use accounts with separate homes",
            server=server,
        )


def _failed_on_leader(server: str, leader: str, error: StepFailedError) -> EnvironmentSetupError:
    first_line = error.message.partition("\n")[0].removeprefix(f"{leader}: ")
    message = f"{server} shares its folder with {leader}, which failed: {first_line}"
    return EnvironmentSetupError(message, hint=error.hint, server=server)
