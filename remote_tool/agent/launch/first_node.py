"""The first node's part in watching a launch: it listens, hears of everything, and decides why the launch ends."""

from __future__ import annotations

import errno
import resource
import socket
import time

from remote_tool.agent.launch.cause import FAILED, KILLED, Cause, Membership, read_cause, silence_of
from remote_tool.agent.launch.heartbeat import (
    FAREWELL_SECONDS,
    GONE_SECONDS,
    JOIN_SECONDS,
    TICK_SECONDS,
    UNKNOWN_SECONDS,
    Watch,
    is_lost,
)
from remote_tool.agent.launch.wire import PeerClosed, Session, Unreachable
from remote_tool.protocol import rank_errors
from remote_tool.protocol.job_folder import allow_open_files
from remote_tool.protocol.lean.suppress import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

_NO_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# The others have this long to say whether they saw something earlier.
_EVIDENCE_SECONDS = 0.7
# All nodes connect at once, and each is unknown until its first signed line; this many others may be among them.
_MORE_UNKNOWN = 16
# The first node reads from many connections in one go, and rests in between: 50 ms for 1,000 nodes.
_NODES_PER_SECOND = 20000
# A supervisor has these open besides.
_OTHER_FILES = 32


class _Node:
    """What the first node knows of another one."""

    def __init__(self) -> None:
        self.session: Optional[Session] = None
        self.heard = time.monotonic()
        self.gone_since: Optional[float] = None
        self.has_joined = False
        self.is_done = False
        self.has_answered = False

    def send(self, message: Dict[str, Any]) -> None:
        """Say something to it, if it is there."""
        if self.session is not None:
            try:
                self.session.send(message)
            except PeerClosed as error:
                self.lose(error)

    def lose(self, error: PeerClosed) -> None:
        """Give up its connection."""
        self.drop()
        if not isinstance(error, Unreachable):
            self.gone_since = time.monotonic()

    def drop(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def is_lost(self, now: float, lost_after: float) -> bool:
        if self.is_done:
            return False
        if not self.has_joined:
            return now - self.heard > JOIN_SECONDS
        return is_lost(now, self.heard, self.gone_since, lost_after)

    def may_have_ended(self, now: float) -> bool:
        """Whether its end may be why others failed, although it is not lost yet."""
        return self.has_joined and not self.is_done and (self.gone_since is not None or now - self.heard > GONE_SECONDS)

    def may_come_back(self, now: float, lost_after: float) -> bool:
        """Whether its link may be mended, and it does not know yet why the launch ends."""
        is_away = self.has_joined and not self.is_done and self.session is None
        return is_away and not self.is_lost(now, lost_after)


class FirstNode(Watch):
    """The first node's part: it hears of everything, and decides."""

    def __init__(self, membership: Membership, folder: int) -> None:
        super().__init__(membership, folder)
        self._nodes = {rank: _Node() for rank in range(1, len(membership.servers))}
        self._unknown: List[Tuple[float, Session]] = []
        # With the moment at which it happened, as its age is that of the moment at which it was told.
        self._suspects: List[Tuple[float, Cause]] = []
        self._asked_until: Optional[float] = None
        _check_open_files(len(membership.servers))
        self._most_unknown = len(self._nodes) + _MORE_UNKNOWN
        self._listener = listen_on(membership.address, membership.port, self._most_unknown)

    def run(self) -> None:
        """Listen, and judge what is heard, until nobody needs this any more."""
        # Only now: the command was started with the limit of its login.
        allow_open_files(len(self._nodes) + self._most_unknown + _OTHER_FILES)
        with self._listener:
            while not self._is_over():
                ready = self._wait(self._sessions(), self._listener)
                time.sleep(len(self._nodes) / _NODES_PER_SECOND)
                self._hear(ready)
                if self._listener in ready:
                    self._accept()
                self._drop_unknown()
                if self._is_time_to_beat():
                    self._tell_all({"beat": True})
                self._judge()
        for session in self._sessions():
            session.close()

    def _is_over(self) -> bool:
        if not self._left:
            return False
        now = time.monotonic()
        if self.verdict is not None and now > max(self._left_at, self._decided_at) + FAREWELL_SECONDS:
            lost_after = self._membership.lost_after
            return not any(node.may_come_back(now, lost_after) for node in self._nodes.values())
        return all(node.is_done for node in self._nodes.values())

    def _sessions(self) -> List[Session]:
        known = [node.session for node in self._nodes.values() if node.session is not None]
        return known + [session for _, session in self._unknown]

    def _accept(self) -> None:
        """Accept every waiting connection, but no more at once than a launch can open at once."""
        for _ in range(self._most_unknown):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_FILES:
                    # The connection keeps waiting, so the next look would come at once.
                    time.sleep(TICK_SECONDS)
                return
            with suppress(PeerClosed):
                self._unknown.append((time.monotonic(), Session(connection, self._membership.secret, 0)))

    def _drop_unknown(self) -> None:
        """Close unknown peers that sent no signed line in time, and the oldest ones when there are too many."""
        late = time.monotonic() - UNKNOWN_SECONDS
        unknown = self._unknown
        while unknown and (len(unknown) > self._most_unknown or unknown[0][0] < late):
            unknown.pop(0)[1].close()

    def _hear(self, ready: Set[Any]) -> None:
        for peer in [each for each in self._unknown if each[1] in ready]:
            self._hear_unknown(peer)
        for rank, node in self._nodes.items():
            session = node.session
            if session is None:
                continue
            try:
                session.flush()
                messages = session.receive() if session in ready else []
            except PeerClosed as error:
                node.lose(error)
                continue
            for message in messages:
                self._take(rank, node, message)

    def _hear_unknown(self, peer: Tuple[float, Session]) -> None:
        session = peer[1]
        try:
            messages = session.receive()
        except PeerClosed:
            self._unknown.remove(peer)
            session.close()
            return
        if not session.is_known:
            return
        self._unknown.remove(peer)
        node = self._nodes.get(session.rank)
        if node is None:
            session.close()
            return
        node.drop()
        node.session, node.gone_since, node.has_joined = session, None, True
        # A signed line tells the node that it is known: only then it counts itself as joined.
        node.send({"beat": True})
        for message in messages:
            self._take(session.rank, node, message)
        if self.verdict is not None:
            node.send({"stop": self.verdict.as_message()})

    def _take(self, rank: int, node: _Node, message: Dict[str, Any]) -> None:
        node.heard = time.monotonic()
        node.has_answered = node.has_answered or "evidence" in message
        cause = read_cause(message.get("failed") or message.get("evidence"), len(self._membership.servers))
        if cause is not None and cause.rank == rank:
            self._suspect(cause)
        if "done" in message:
            node.is_done = True
            node.send({"bye": True})

    def _suspect(self, cause: Cause) -> None:
        if self.verdict is None and all(known.rank != cause.rank for _, known in self._suspects):
            self._suspects.append((time.monotonic() - cause.age, cause))

    def _judge(self) -> None:
        if self.verdict is not None:
            return
        own = self._reported
        if own is not None:
            self._suspect(self._own_evidence() or own)
        now = time.monotonic()
        for rank, node in self._nodes.items():
            if node.is_lost(now, self._membership.lost_after):
                self._suspect(silence_of(rank, now - node.heard, has_joined=node.has_joined))
        if self._suspects:
            self._weigh(now)

    def _weigh(self, now: float) -> None:
        """Ask what the others saw; then the oldest is the first cause, and everybody is told.

        What a rank says whose peer is gone is the cause only where nobody knows of another one.
        """
        killed = [cause for _, cause in self._suspects if cause.kind == KILLED]
        if self._asked_until is None:
            self._asked_until = now + _EVIDENCE_SECONDS
            self._tell_all({"ask": True})
        waiting = [node for node in self._nodes.values() if node.session and not node.has_answered and not node.is_done]
        if not killed and waiting and now < self._asked_until:
            return
        for rank, node in self._nodes.items():
            if node.may_have_ended(now):
                self._suspect(silence_of(rank, now - node.heard, has_joined=True))
        own = self._own_evidence()
        if own is not None:
            self._suspect(own)
        first = min(self._suspects, key=lambda each: (_is_consequence(each[1]), each[0]))
        cause = killed[0] if killed else first[1]
        self._tell_all({"stop": cause.as_message()})
        self._decide(cause)

    def _tell_all(self, message: Dict[str, Any]) -> None:
        for node in self._nodes.values():
            node.send(message)


def _is_consequence(cause: Cause) -> bool:
    """Whether a rank failed because another one was gone."""
    return cause.kind == FAILED and rank_errors.is_consequence(cause.what)


def _check_open_files(size: int) -> None:
    """Refuse a launch of so many nodes where this machine cannot have a connection to each."""
    count = size + _OTHER_FILES
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < count:
        raise OSError(errno.EMFILE, f"{size} nodes need {count} open files here, and `ulimit -Hn` allows {most}")


def listen_on(address: str, port: int, waiting: int = 64) -> socket.socket:
    """Listen on one address of this machine; on all of them when it is not this machine's own.

    Args:
        address: Of this machine.
        port: There.
        waiting: How many connections may wait to be accepted.
    """
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            # The others reach this machine by an address that a router translates.
            listener.bind(("", port))
        listener.listen(waiting)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
