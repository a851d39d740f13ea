"""The cause of the end of a launch, as supervisors send it to each other."""

from __future__ import annotations

from remote_tool.agent.requests import is_text
from remote_tool.protocol import rank_errors
from remote_tool.protocol.limits import DEFAULT_LOST_AFTER, is_lost_after
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import is_grace, is_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

FAILED, KILLED, LOST = "failed", "killed", "lost"
# After a failure, nodes need not wait for each other, but a checkpoint may be being written.
STOP_GRACE = 4.0
_KINDS = {FAILED, KILLED, LOST}
_LONGEST_TEXT = 300
_LAST_PORT = 65535
_SECRET_LENGTH = 32


class Membership(NamedTuple):
    """A node's place in a launch.

    Attributes:
        rank: Its node rank; 0 listens.
        servers: Names of all nodes, by rank.
        address: Where the first node listens.
        port: The port there.
        secret: The launch's secret; never written to disk.
        rank_offset: Global rank of the node's local rank 0; None when torchrun decides.
        lost_after: Seconds of silence after which a node counts as lost.
        hidden: Values of the job's variables, which no record shows.
        goes_on_without_workers: Whether the launch goes on when a node other than the first ends.
    """

    rank: int
    servers: Tuple[str, ...]
    address: str
    port: int
    secret: bytes
    rank_offset: Optional[int] = None
    lost_after: float = DEFAULT_LOST_AFTER
    hidden: Tuple[str, ...] = ()
    goes_on_without_workers: bool = False

    def name(self, rank: int) -> str:
        """Return a display name like ``second (node 1)``."""
        return f"{self.servers[rank]} (node {rank})"


def read_membership(fields: Any, rank: Optional[int], rank_offset: Optional[int]) -> Membership:  # noqa: ANN401 - checked here
    """Return a node's place in a launch from a client's request; ValueError when incomplete."""
    known = fields if isinstance(fields, dict) else {}
    servers, address, port, secret = (known.get(name) for name in ("servers", "address", "port", "secret"))
    if not isinstance(servers, list) or not all(isinstance(each, str) for each in [*servers, address, secret]):
        raise ValueError("its launch membership has no servers, address or secret")
    if type(port) is not int or not 0 < port <= _LAST_PORT or len(str(secret)) < _SECRET_LENGTH:
        raise ValueError("its launch membership has an invalid port or secret")
    if rank is None or rank >= len(servers):
        raise ValueError("its node rank is not part of the launch")
    lost_after = known.get("lost_after", DEFAULT_LOST_AFTER)
    if not is_lost_after(lost_after):
        raise ValueError(f"its launch membership has an invalid lost_after: {lost_after!r:.40}")
    return Membership(
        rank,
        tuple(servers),
        str(address),
        port,
        str(secret).encode("utf-8"),
        rank_offset,
        lost_after,
        goes_on_without_workers=known.get("goes_on_without_workers") is True,
    )


class Cause(NamedTuple):
    """The cause of the end of a launch.

    Attributes:
        rank: Rank of the affected node.
        kind: ``failed``, ``killed`` by the user, or ``lost``.
        what: What happened, to continue a sentence that begins with the node's name.
        age: Seconds since it happened.
        signal: The signal for stopping the other nodes.
        grace: Seconds until SIGKILL.
    """

    rank: int
    kind: str
    what: str
    age: float = 0.0
    signal: str = "SIGTERM"
    grace: float = STOP_GRACE

    @property
    def is_users(self) -> bool:
        """Return whether the user killed a node."""
        return self.kind == KILLED

    def as_message(self) -> Dict[str, Any]:
        return dict(self._asdict())


def read_cause(message: Any, size: int) -> Optional[Cause]:  # noqa: ANN401 - whatever another node sent
    """Return the cause in a message; None if invalid."""
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
    """Return the cause if a node is silent for a number of seconds."""
    if has_joined:
        return Cause(rank, LOST, f"has not responded for {seconds:.0f} s", seconds)
    return Cause(rank, LOST, f"did not join the launch within {seconds:.0f} s", seconds)


def find_rank_error(folder: int, membership: Membership, *, has_ended: bool = False) -> Optional[Cause]:
    """Return the first error of a rank of this node, if known; ``has_ended``: whether the command failed."""
    error = rank_errors.find_first_error(folder, membership.rank_offset, has_ended=has_ended)
    if error is None:
        return None
    what = error.what
    for value in membership.hidden:
        what = what.replace(value, "***")
    return Cause(membership.rank, FAILED, what[:_LONGEST_TEXT], rank_errors.age_of(error))
