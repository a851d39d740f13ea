"""Why a launch ends: what happened on which node, as it is told from one supervisor to another."""

from __future__ import annotations

import os
import time

from . import job_files, quick_json
from .named_tuple import NamedTuple
from .records import is_grace, is_signal
from .requests import is_text
from .streams import find_streams
from .suppressing import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

FAILED, KILLED, LOST = "failed", "killed", "lost"
# After a failure nobody waits for the others, but a checkpoint may be written.
STOP_GRACE = 4.0
_KINDS = {FAILED, KILLED, LOST}
_LONGEST_TEXT = 300
_ERROR_FILE_LIMIT = 1024 * 1024
_LAST_PORT = 65535
_SECRET_LENGTH = 32


class Membership(NamedTuple):
    """A node's place in a launch.

    Attributes:
        rank: Its node rank; 0 listens.
        servers: Names of all nodes, by rank.
        address: Where the first node listens.
        port: The port there.
        secret: Of the launch; it is on no disk.
        rank_offset: Global rank of the node's local rank 0; None when torchrun decides.
    """

    rank: int
    servers: Tuple[str, ...]
    address: str
    port: int
    secret: bytes
    rank_offset: Optional[int] = None

    def name(self, rank: int) -> str:
        """For people: ``second (node 1)``."""
        return f"{self.servers[rank]} (node {rank})"


def read_membership(fields: Any, rank: Optional[int], rank_offset: Optional[int]) -> Membership:  # noqa: ANN401 - checked here
    """Return a node's place in a launch as a client describes it; ValueError when it is not whole."""
    known = fields if isinstance(fields, dict) else {}
    servers, address, port, secret = (known.get(name) for name in ("servers", "address", "port", "secret"))
    if not isinstance(servers, list) or not all(isinstance(each, str) for each in [*servers, address, secret]):
        raise ValueError("its place in the launch has no servers, address or secret")
    if type(port) is not int or not 0 < port <= _LAST_PORT or len(str(secret)) < _SECRET_LENGTH:
        raise ValueError("its place in the launch has no port or a short secret")
    if rank is None or rank >= len(servers):
        raise ValueError("its node rank is not one of the launch")
    return Membership(rank, tuple(servers), str(address), port, str(secret).encode("utf-8"), rank_offset)


class Cause(NamedTuple):
    """Why a launch ends.

    Attributes:
        rank: Node rank of whom it happened to.
        kind: ``failed``, ``killed`` by the user, or ``lost``.
        what: What happened, to go on after the node's name.
        age: Seconds since then.
        signal: How the others are to be stopped.
        grace: Seconds until SIGKILL.
    """

    rank: int
    kind: str
    what: str
    age: float = 0.0
    signal: str = "SIGTERM"
    grace: float = STOP_GRACE

    def as_message(self) -> Dict[str, Any]:
        return dict(self._asdict())


def read_cause(message: Any, size: int) -> Optional[Cause]:  # noqa: ANN401 - whatever another node sent
    """Return the cause in a message; None when it is none that could be."""
    if not isinstance(message, dict):
        return None
    fields: List[Any] = [message.get(name) for name in Cause._fields]
    cause = Cause(*fields)
    if type(cause.rank) is not int or not 0 <= cause.rank < size or cause.kind not in _KINDS:
        return None
    if not is_text(cause.what) or not is_signal(cause.signal) or not is_grace(cause.age) or not is_grace(cause.grace):
        return None
    return cause._replace(what=cause.what[:_LONGEST_TEXT])


def silence_of(rank: int, seconds: float, *, has_joined: bool) -> Cause:
    if has_joined:
        return Cause(rank, LOST, f"gave no sign of life for {seconds:.0f} s", seconds)
    return Cause(rank, LOST, f"did not join the launch within {seconds:.0f} s", seconds)


def find_rank_error(folder: int, membership: Membership) -> Optional[Cause]:
    """Return the oldest error that a rank of this node has noted, as torch's ``record`` decorator does."""
    streams = {name: path for name, path in find_streams(folder).items() if name.startswith("ranks/")}
    # torchrun starts failed ranks anew, and what failed before that is not why it ends.
    last = max((int(name.split("/")[1]) for name in streams), default=0)
    found = []
    for stream, path in streams.items():
        if stream.startswith(f"ranks/{last}/") and stream.endswith("/error"):
            with suppress(OSError):
                status = os.stat(path, dir_fd=folder, follow_symlinks=False)
                found.append((status.st_mtime, stream, path))
    if not found:
        return None
    moment, stream, path = min(found)
    local_rank = int(stream.split("/")[2])
    name = f"local rank {local_rank}"
    if membership.rank_offset is not None:
        name = f"rank {membership.rank_offset + local_rank}"
    message = _error_message(folder, path)
    return Cause(membership.rank, FAILED, f"{name}: {message}"[:_LONGEST_TEXT], max(0.0, time.time() - moment))


def _error_message(folder: int, path: str) -> str:
    try:
        with open(job_files.open_file_beneath(folder, path), "rb") as stream:
            message = quick_json.loads(stream.read(_ERROR_FILE_LIMIT).decode("utf-8"))["message"]
        return str(message["message"] if isinstance(message, dict) else message).split("\n")[0]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "an error that cannot be read"
