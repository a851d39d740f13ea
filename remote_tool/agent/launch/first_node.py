"""The first node of a launch: listen for the other nodes and decide why the launch ends."""

from __future__ import annotations

import errno
import resource
import socket
import time
from contextlib import suppress

from remote_tool.agent.launch.cause import FAILED, KILLED, Cause, Membership, read_cause, silence_of
from remote_tool.agent.launch.heartbeat import (
    FAREWELL_SECONDS,
    JOIN_SECONDS,
    RECONNECT_SECONDS,
    TICK_SECONDS,
    UNKNOWN_SECONDS,
    Watch,
    is_lost,
)
from remote_tool.agent.launch.wire import PeerClosed, PeerSession, Unreachable
from remote_tool.protocol import job_folder, rank_errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

_NO_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# The others have this long to report an earlier cause.
_EVIDENCE_SECONDS = 0.7
# All nodes connect at once, unauthenticated until their first signed line; strangers may use this many more slots.
_MORE_UNKNOWN = 16
# The first node reads many connections per round, then pauses: 50 ms for 1,000 nodes.
_NODES_PER_SECOND = 20000
# Other open files of a supervisor.
_OTHER_FILES = 32


class _OtherNode:
    """The first node's view of another node."""

    def __init__(self) -> None:
        self.session: Optional[PeerSession] = None
        self.last_message_at = time.monotonic()
        self.closed_at: Optional[float] = None
        self.has_joined = False
        self.is_done = False
        self.has_answered = False

    def send(self, message: Dict[str, Any]) -> None:
        """Send a message, if connected."""
        if self.session is not None:
            try:
                self.session.send(message)
            except PeerClosed as error:
                self.lose(error)

    def lose(self, error: PeerClosed) -> None:
        """Close the connection."""
        self.drop()
        if not isinstance(error, Unreachable):
            self.closed_at = time.monotonic()

    def drop(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def is_lost(self, now: float, lost_after: float) -> bool:
        if self.is_done:
            return False
        if not self.has_joined:
            return now - self.last_message_at > JOIN_SECONDS
        return is_lost(now, self.last_message_at, self.closed_at, lost_after)

    def may_have_ended(self, now: float) -> bool:
        """Return whether the node's end may have caused other failures, although it is not lost yet."""
        return (
            self.has_joined
            and not self.is_done
            and (self.closed_at is not None or now - self.last_message_at > RECONNECT_SECONDS)
        )

    def may_come_back(self, now: float, lost_after: float) -> bool:
        """Return whether the node may reconnect, and does not know yet why the launch ends."""
        is_away = self.has_joined and not self.is_done and self.session is None
        return is_away and not self.is_lost(now, lost_after)


class FirstNodeWatch(Watch):
    """The first node: receives all reports and decides."""

    def __init__(self, membership: Membership, folder: int) -> None:
        super().__init__(membership, folder)
        self._nodes = {rank: _OtherNode() for rank in range(1, len(membership.servers))}
        self._unknown: List[Tuple[float, PeerSession]] = []
        # Workers whose end has been reported, if the launch goes on without them.
        self._missing: Set[int] = set()
        # With the time of the event, computed from its age on arrival.
        self._suspects: List[Tuple[float, Cause]] = []
        self._asked_until: Optional[float] = None
        _check_open_files(len(membership.servers))
        self._most_unknown = len(self._nodes) + _MORE_UNKNOWN
        self._listener = listen_on(membership.address, membership.port, self._most_unknown)

    def run(self) -> None:
        """Listen and process reports until no node needs this any longer."""
        # Only now: the command was started with the login's own limit.
        job_folder.allow_open_files(len(self._nodes) + self._most_unknown + _OTHER_FILES)
        with self._listener:
            while not self._is_over():
                ready = self._wait(self._sessions(), self._listener)
                time.sleep(len(self._nodes) / _NODES_PER_SECOND)
                self._receive(ready)
                if self._listener in ready:
                    self._accept()
                self._drop_unknown()
                if self._is_time_to_beat():
                    self._broadcast({"beat": True})
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
        return all(node.is_done or rank in self._missing for rank, node in self._nodes.items())

    def _sessions(self) -> List[PeerSession]:
        known = [node.session for node in self._nodes.values() if node.session is not None]
        return known + [session for _, session in self._unknown]

    def _accept(self) -> None:
        """Accept waiting connections, up to the number that one launch can open at once."""
        for _ in range(self._most_unknown):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_FILES:
                    # The connection is still waiting, so poll would return at once.
                    time.sleep(TICK_SECONDS)
                return
            with suppress(PeerClosed):
                self._unknown.append((time.monotonic(), PeerSession(connection, self._membership.secret, 0)))

    def _drop_unknown(self) -> None:
        """Close unauthenticated connections that timed out, and the oldest ones beyond the limit."""
        late = time.monotonic() - UNKNOWN_SECONDS
        unknown = self._unknown
        while unknown and (len(unknown) > self._most_unknown or unknown[0][0] < late):
            unknown.pop(0)[1].close()

    def _receive(self, ready: Set[Any]) -> None:
        for peer in [each for each in self._unknown if each[1] in ready]:
            self._authenticate(peer)
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

    def _authenticate(self, peer: Tuple[float, PeerSession]) -> None:
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
        node.session, node.closed_at, node.has_joined = session, None, True
        if session.rank in self._missing:
            self._missing.remove(session.rank)
            self._say(session.rank, "has answered again")
        # A signed line confirms the connection: only then does the node count itself as joined.
        node.send({"beat": True})
        for message in messages:
            self._take(session.rank, node, message)
        if self.verdict is not None:
            node.send({"stop": self.verdict.as_message()})

    def _take(self, rank: int, node: _OtherNode, message: Dict[str, Any]) -> None:
        node.last_message_at = time.monotonic()
        node.has_answered = node.has_answered or "evidence" in message
        cause = read_cause(message.get("failed") or message.get("evidence"), len(self._membership.servers))
        if cause is not None and cause.rank == rank:
            self._suspect(cause)
        if "done" in message:
            node.is_done = True
            node.send({"bye": True})

    def _suspect(self, cause: Cause) -> None:
        if self._membership.goes_on_without_workers and cause.rank and cause.kind != KILLED:
            if cause.rank not in self._missing:
                self._missing.add(cause.rank)
                self._say(cause.rank, f"{cause.what}; the others go on without it")
            return
        if self.verdict is None and all(known.rank != cause.rank for _, known in self._suspects):
            self._suspects.append((time.monotonic() - cause.age, cause))

    def _say(self, rank: int, what: str) -> None:
        # A full disk must not end the watch.
        with suppress(OSError):
            job_folder.add_lines(self._folder, [f"{self._membership.name(rank)} {what}"])

    def _judge(self) -> None:
        if self.verdict is not None:
            return
        own = self._reported
        if own is not None:
            self._suspect(self._own_evidence() or own)
        now = time.monotonic()
        for rank, node in self._nodes.items():
            if node.is_lost(now, self._membership.lost_after):
                self._suspect(silence_of(rank, now - node.last_message_at, has_joined=node.has_joined))
        if self._suspects:
            self._weigh(now)

    def _weigh(self, now: float) -> None:
        """Collect the reports of the others; then the oldest cause is the first, and is sent to all.

        A rank's error about a lost peer is the cause only when there is no other.
        """
        killed = [cause for _, cause in self._suspects if cause.kind == KILLED]
        if self._asked_until is None:
            self._asked_until = now + _EVIDENCE_SECONDS
            self._broadcast({"ask": True})
        waiting = [node for node in self._nodes.values() if node.session and not node.has_answered and not node.is_done]
        if not killed and waiting and now < self._asked_until:
            return
        for rank, node in self._nodes.items():
            if node.may_have_ended(now):
                self._suspect(silence_of(rank, now - node.last_message_at, has_joined=True))
        own = self._own_evidence()
        if own is not None:
            self._suspect(own)
        first = min(self._suspects, key=lambda each: (_is_consequence(each[1]), each[0]))
        cause = killed[0] if killed else first[1]
        self._broadcast({"stop": cause.as_message()})
        self._decide(cause)

    def _broadcast(self, message: Dict[str, Any]) -> None:
        for node in self._nodes.values():
            node.send(message)


def _is_consequence(cause: Cause) -> bool:
    """Return whether a rank failed because its peer had ended."""
    return cause.kind == FAILED and rank_errors.is_consequence(cause.what)


def _check_open_files(size: int) -> None:
    """Refuse a launch with more nodes than this machine can hold connections."""
    count = size + _OTHER_FILES
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < count:
        raise OSError(errno.EMFILE, f"{size} nodes need {count} open files here, and `ulimit -Hn` allows {most}")


def listen_on(address: str, port: int, waiting: int = 64) -> socket.socket:
    """Listen on one address of this machine, or on all if it is not this machine's own.

    Args:
        address: An address of this machine.
        port: The port.
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
