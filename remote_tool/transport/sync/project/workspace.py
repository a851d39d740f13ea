"""Record which workspaces have sent a folder on a server: projects of one name do not remove each other's files.

A workspace has a random id, which is in its own folder: a copy of that folder on another machine is the same one.
A server's record has a line for each workspace, and for each place of it: ``<id> <user>@<machine>:<path>``.
"""

from __future__ import annotations

import getpass
import hashlib
import re
import secrets
import shlex
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.errors import AnotherWorkspaceError
from remote_tool.system.files import read_bounded, write_all_atomically
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.transport.sync import last_sync

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.paths import LocalPaths, RemotePaths

# Who has sent before servers kept this record; its place is the user and machine of the last sync.
UNKNOWN = "unknown"
_ID = re.compile(r"[0-9a-f]{32}")
_LARGEST = 100
_SHOWN = 3


class WorkspaceId(NamedTuple):
    """A workspace, as servers record it.

    Attributes:
        id: Random, 32 hex digits.
        place: User, machine and folder.
    """

    id: str
    place: str

    @property
    def line(self) -> str:
        return f"{self.id} {self.place}"


def own_name() -> str:
    """Return this user and computer, for others who share a folder on a server."""
    return printable(f"{getpass.getuser()}@{socket.gethostname()}")


def own_workspace(local: LocalPaths) -> WorkspaceId:
    """Return the id of a workspace, which is created at first use."""
    place = printable(f"{own_name()}:{local.root}").encode(errors="replace").decode()
    file = local.workspace_id
    if found := _recall(local):
        return WorkspaceId(found, place)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Another sync may create it at the same time.
        write_all_atomically({file: secrets.token_hex(16).encode() + b"\n"}, overwrite=False)
    # Where nothing can be written, such as on a full disk, the place is all there is.
    return WorkspaceId(_recall(local) or hashlib.sha256(place.encode()).hexdigest()[:32], place)


def _recall(local: LocalPaths) -> str:
    with suppress(OSError, ValueError):
        text = read_bounded(local.workspace_id, _LARGEST)[0].decode(errors="replace").strip()
        return text if _ID.fullmatch(text) else ""
    return ""


def has_sent(known: Path | None, begun: Path | None, snapshot: str) -> bool:
    """Return whether a workspace has sent to a folder, as far as its own records say.

    Args:
        known: Its record of what the server has; such records of other servers are beside it.
        begun: Its record of an interrupted sync.
        snapshot: What the server has completely; empty if unknown.
    """
    if any(file is not None and file.exists() for file in (known, begun)):
        return True
    # Servers may share a folder, or have been renamed.
    files = known.parent.glob(f"*{known.suffix}") if known and snapshot else ()
    return any(copy.snapshot_id == snapshot for copy in map(last_sync.recall, files) if copy)


def are_others(own: WorkspaceId, lines: Sequence[str], *, has_sent: bool) -> bool:
    """Return whether only other workspaces have sent a folder.

    Args:
        own: This workspace.
        lines: The server's record.
        has_sent: Whether this workspace has sent there before servers kept a record.
    """
    ids = {line.partition(" ")[0] for line in lines}
    return bool(ids) and own.id not in ids and not (has_sent and UNKNOWN in ids)


def refusal(server: str, remote: RemotePaths, own: WorkspaceId, lines: Sequence[str]) -> AnotherWorkspaceError:
    """Return the error of a workspace that would use the folder of others."""
    places = [printable(line.partition(" ")[2]) or "another workspace" for line in lines]
    # The name of a computer says less than the place on it, which was recorded later.
    shown = [place for place in dict.fromkeys(places) if not any(each.startswith(f"{place}:") for each in places)]
    others = ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")
    folder = f"~/{remote.project}"
    return AnotherWorkspaceError(
        f"{server}: {folder} was sent from {others}; this workspace, {own.place}, has never sent it",
        hint=f"For another project, set another name: in .remote/configs.yaml. To share {folder}: "
        f"remote-tool rsync --adopt --server {shlex.quote(server)}",
        server=server,
        question=f"{server}: {folder} was sent from {others}. Share it with this workspace, {own.place}? "
        "Its files of the same names are replaced, others stay",
    )


def renamed_notice(server: str, old: str, new: str) -> str:
    """Return the message of a first sync under another name; its command removes nothing."""
    before, now, aside = (f"~/{shlex.quote(name)}" for name in (old, new, f"{new}.aside"))
    command = shlex.quote(f"cd; mv {now} {aside}; mv {before} {now}")
    return (
        f"this workspace has sent {before} before, with its jobs and their files; to use it under the new name, when "
        f"none of its jobs is running: remote-tool run --server {shlex.quote(server)} --cmd {command}"
    )
