"""The supervisors of a launch watch each other, so that none trains on alone when another node has gone.

The first node's supervisor listens on the address where the nodes meet; the others connect to it. Every second each
says that it lives. When a node fails, is killed, or is not heard of for a while, the first node asks the others what
they saw, decides what came first, and tells everybody to stop. A node that hears nothing from the first one stops by
itself. No laptop is needed for any of it.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from .launch_cause import FAILED, KILLED, Cause, Membership, find_rank_error, read_cause, silence_of
from .launch_wire import Gone, Session
from .signals import signal
from .suppressing import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

BEAT_SECONDS = 1.0
# A node that is silent for this long is lost. With the grace of a cause the rest has stopped within 15 seconds.
SILENCE_SECONDS = 8.0
# All nodes are started at once, but one of them may be slow to log in to.
JOIN_SECONDS = 60.0
# The others have this long to say whether they saw something earlier.
_EVIDENCE_SECONDS = 0.7
_TICK_SECONDS = 0.25
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.5
# A start is told when the first node knows this one, so that it is missed at once; or after this long without it.
_MEET_SECONDS = 2.0
_MEET_RETRY_SECONDS = 0.05
_VERDICT_SECONDS = 3.0
_FAREWELL_SECONDS = 10.0
_MOST_STRANGERS = 16
_STRANGER_SECONDS = 5.0


class Watch(threading.Thread):
    """A node's part in the watching.

    Attributes:
        verdict: Why the launch ends, once that is decided.
    """

    def __init__(self, membership: Membership, folder: int) -> None:
        """Make one; ``start`` begins.

        Args:
            membership: The node's place.
            folder: Descriptor of the job's folder, where its ranks note their errors.
        """
        super().__init__(daemon=True)
        self.verdict: Optional[Cause] = None
        self._membership = membership
        self._folder = folder
        self._decided = threading.Event()
        self._decided_at = 0.0
        self._reported: Optional[Cause] = None
        self._reported_at = 0.0
        self._left = False
        self._left_at = 0.0
        self._woken, self._wake = socket.socketpair()
        self._next_beat = 0.0

    def meet(self) -> None:
        """Wait a moment until the first node knows this one."""

    def report(self, cause: Cause) -> None:
        """Say that this node's command has failed, or that the user kills it."""
        self._reported, self._reported_at = cause, time.monotonic()
        self._wake.send(b"1")

    def wait_for_verdict(self) -> Optional[Cause]:
        """Wait a moment for the others to agree on what came first."""
        self._decided.wait(_VERDICT_SECONDS)
        return self.verdict

    def leave(self) -> None:
        """Say that this node is done, and go on for the others for as long as they need it."""
        self._left_at = time.monotonic()
        self._left = True
        self._wake.send(b"1")
        self.join()

    def run(self) -> None:
        """Take part until this node has left and nobody needs it."""
        raise NotImplementedError

    def _decide(self, cause: Cause) -> None:
        if self.verdict is None:
            self.verdict, self._decided_at = cause, time.monotonic()
            self._decided.set()
            # The supervisor sleeps until a signal.
            os.kill(os.getpid(), signal.SIGUSR1)

    def _own_evidence(self) -> Optional[Cause]:
        """What happened on this node, if anything has: a rank's own error is older than the end of the command."""
        rank_error = find_rank_error(self._folder, self._membership)
        if self._reported is None or (rank_error and self._reported.kind == FAILED):
            return rank_error
        return self._reported._replace(age=time.monotonic() - self._reported_at)

    def _wait(self, sessions: List[Session], *others: socket.socket, seconds: float = _TICK_SECONDS) -> List[Any]:
        writing = [session for session in sessions if session.has_unsent]
        reading: List[Any] = [self._woken, *others, *sessions]
        ready, _, _ = select.select(reading, writing, [], seconds)
        if self._woken in ready:
            self._woken.recv(64)
        return ready

    def _is_time_to_beat(self) -> bool:
        now = time.monotonic()
        if now < self._next_beat:
            return False
        self._next_beat = now + BEAT_SECONDS
        return True


class _Node:
    """What the first node knows of another one."""

    def __init__(self) -> None:
        self.session: Optional[Session] = None
        self.heard = time.monotonic()
        self.has_joined = False
        self.is_done = False
        self.has_answered = False

    def send(self, message: Dict[str, Any]) -> None:
        """Say something to it, if it is there."""
        if self.session is not None:
            try:
                self.session.send(message)
            except Gone:
                self.drop()

    def drop(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


class FirstNode(Watch):
    """The first node's part: it hears of everything, and decides."""

    def __init__(self, membership: Membership, folder: int) -> None:
        super().__init__(membership, folder)
        self._nodes = {rank: _Node() for rank in range(1, len(membership.servers))}
        self._strangers: List[Tuple[float, Session]] = []
        self._suspects: List[Cause] = []
        self._asked_until: Optional[float] = None
        self._listener = listen_on(membership.address, membership.port)

    def run(self) -> None:
        """Listen, and judge what is heard, until nobody needs this any more."""
        with self._listener:
            while not self._is_over():
                ready = self._wait(self._sessions(), self._listener)
                if self._listener in ready:
                    self._accept()
                self._hear(ready)
                if self._is_time_to_beat():
                    self._tell_all({"beat": True})
                self._judge()
        for session in self._sessions():
            session.close()

    def _is_over(self) -> bool:
        if not self._left:
            return False
        if self.verdict is not None and time.monotonic() > max(self._left_at, self._decided_at) + _FAREWELL_SECONDS:
            return True
        return all(node.is_done for node in self._nodes.values())

    def _sessions(self) -> List[Session]:
        known = [node.session for node in self._nodes.values() if node.session is not None]
        return known + [session for _, session in self._strangers]

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with suppress(Gone):
            self._strangers.append((time.monotonic(), Session(connection, self._membership.secret, 0)))
        now = time.monotonic()
        for stranger in [each for each in self._strangers if now - each[0] > _STRANGER_SECONDS]:
            self._strangers.remove(stranger)
            stranger[1].close()
        if len(self._strangers) > _MOST_STRANGERS:
            self._strangers.pop(0)[1].close()

    def _hear(self, ready: List[Any]) -> None:
        for stranger in [each for each in self._strangers if each[1] in ready]:
            self._hear_stranger(stranger)
        for rank, node in self._nodes.items():
            session = node.session
            if session is None:
                continue
            try:
                session.flush()
                messages = session.receive() if session in ready else []
            except Gone:
                node.drop()
                continue
            for message in messages:
                self._take(rank, node, message)

    def _hear_stranger(self, stranger: Tuple[float, Session]) -> None:
        session = stranger[1]
        try:
            messages = session.receive()
        except Gone:
            self._strangers.remove(stranger)
            session.close()
            return
        if not session.is_known:
            return
        self._strangers.remove(stranger)
        node = self._nodes.get(session.rank)
        if node is None:
            session.close()
            return
        node.drop()
        node.session, node.has_joined = session, True
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
        if self.verdict is None and all(known.rank != cause.rank for known in self._suspects):
            self._suspects.append(cause)

    def _judge(self) -> None:
        if self.verdict is not None:
            return
        own = self._reported
        if own is not None:
            self._suspect(self._own_evidence() or own)
        now = time.monotonic()
        for rank, node in self._nodes.items():
            limit = SILENCE_SECONDS if node.has_joined else JOIN_SECONDS
            if not node.is_done and now - node.heard > limit:
                self._suspect(silence_of(rank, now - node.heard, has_joined=node.has_joined))
        if self._suspects:
            self._weigh(now)

    def _weigh(self, now: float) -> None:
        """Ask what the others saw; then the oldest is the first cause, and everybody is told."""
        killed = [cause for cause in self._suspects if cause.kind == KILLED]
        if self._asked_until is None:
            self._asked_until = now + _EVIDENCE_SECONDS
            self._tell_all({"ask": True})
        waiting = [node for node in self._nodes.values() if node.session and not node.has_answered and not node.is_done]
        if not killed and waiting and now < self._asked_until:
            return
        for rank, node in self._nodes.items():
            # Its end may be why the others failed, and it can no longer say so.
            if node.has_joined and node.session is None and not node.is_done:
                self._suspect(silence_of(rank, now - node.heard, has_joined=True))
        own = self._own_evidence()
        if own is not None:
            self._suspect(own)
        cause = (killed or sorted(self._suspects, key=lambda each: -each.age))[0]
        self._tell_all({"stop": cause.as_message()})
        self._decide(cause)

    def _tell_all(self, message: Dict[str, Any]) -> None:
        for node in self._nodes.values():
            node.send(message)


class OtherNode(Watch):
    """The part of every other node: it says how it stands, and does what it is told."""

    def __init__(self, membership: Membership, folder: int) -> None:
        super().__init__(membership, folder)
        self._session: Optional[Session] = None
        self._heard = time.monotonic()
        self._has_joined = False
        self._met = threading.Event()
        self._meets_until = time.monotonic() + _MEET_SECONDS
        self._next_try = 0.0
        self._told: Optional[str] = None
        self._is_free = False

    def meet(self) -> None:
        self._met.wait(max(0.0, self._meets_until - time.monotonic()))

    def run(self) -> None:
        """Keep a connection to the first node, and hear what it says, until it lets this one go."""
        while not self._is_over():
            if self._session is None:
                self._connect()
            sessions = [self._session] if self._session is not None else []
            ready = self._wait(sessions, seconds=_MEET_RETRY_SECONDS if self._is_meeting else _TICK_SECONDS)
            try:
                self._talk(ready)
            except Gone:
                self._drop()
            self._judge()
        self._drop()

    def _is_over(self) -> bool:
        if not self._left:
            return False
        is_alone = self.verdict is not None and self._session is None
        return self._is_free or is_alone or time.monotonic() > self._left_at + _FAREWELL_SECONDS

    @property
    def _is_meeting(self) -> bool:
        return not self._has_joined and time.monotonic() < self._meets_until

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        self._told = None

    def _connect(self) -> None:
        if time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + (0.0 if self._is_meeting else _RETRY_SECONDS)
        where = (self._membership.address, self._membership.port)
        try:
            connection = socket.create_connection(where, _CONNECT_SECONDS)
        except OSError:
            return
        with suppress(Gone):
            self._session = Session(connection, self._membership.secret, self._membership.rank)
            self._session.send({"beat": True})

    def _talk(self, ready: List[Any]) -> None:
        session = self._session
        if session is None:
            return
        session.flush()
        messages = session.receive() if session in ready else []
        if not self._has_joined and session.rank == 0:
            # From its first word on it is missed when it falls silent.
            self._heard, self._has_joined = time.monotonic(), True
            self._met.set()
        for message in messages:
            self._heard = time.monotonic()
            self._take(session, message)
        if self._is_time_to_beat():
            session.send({"beat": True})
        self._tell(session)

    def _take(self, session: Session, message: Dict[str, Any]) -> None:
        if "ask" in message:
            evidence = self._own_evidence()
            session.send({"evidence": evidence.as_message() if evidence else {}})
        if "stop" in message:
            cause = read_cause(message["stop"], len(self._membership.servers))
            if cause is not None:
                self._decide(cause)
        if "bye" in message:
            self._is_free = True

    def _tell(self, session: Session) -> None:
        """Say how this node stands, once per connection."""
        if self._left and self._told != "done":
            self._told = "done"
            session.send({"done": True})
        elif self._reported is not None and self._told is None:
            self._told = "failed"
            cause = self._own_evidence() or self._reported
            session.send({"failed": cause.as_message()})

    def _judge(self) -> None:
        silence = time.monotonic() - self._heard
        if silence > (SILENCE_SECONDS if self._has_joined else JOIN_SECONDS):
            self._decide(silence_of(0, silence, has_joined=self._has_joined))


def make_watch(membership: Membership, folder: int) -> Watch:
    """Return a node's part in the watching; OSError when the first node cannot listen."""
    return FirstNode(membership, folder) if membership.rank == 0 else OtherNode(membership, folder)


def listen_on(address: str, port: int) -> socket.socket:
    """Listen on one address of this machine; on all of them when it is not this machine's own."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            # The others reach this machine by an address that a router translates.
            listener.bind(("", port))
        listener.listen(64)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
