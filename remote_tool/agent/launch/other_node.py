"""Every other node of a launch: report to the first node and follow its decisions."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

from remote_tool.agent.launch.cause import Membership, read_cause, silence_of
from remote_tool.agent.launch.heartbeat import (
    FAREWELL_SECONDS,
    JOIN_SECONDS,
    TICK_SECONDS,
    UNKNOWN_SECONDS,
    Watch,
    is_lost,
)
from remote_tool.agent.launch.wire import PeerClosed, PeerSession, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Set

_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.5
# A start is reported once the first node has authenticated this one, so that its loss is noticed; or after this long.
_JOIN_SECONDS = 2.0
_JOIN_RETRY_SECONDS = 0.05


class OtherNodeWatch(Watch):
    """Every other node: reports to the first node and follows its decisions."""

    def __init__(self, membership: Membership, folder: int) -> None:
        super().__init__(membership, folder)
        self._session: Optional[PeerSession] = None
        self._last_message_at = time.monotonic()
        self._closed_at: Optional[float] = None
        self._has_joined = False
        self._joined = threading.Event()
        self._joins_until = time.monotonic() + _JOIN_SECONDS
        self._next_try = self._tried_at = 0.0
        self._reported_as: Optional[str] = None
        self._is_free = False

    def wait_to_join(self) -> None:
        self._joined.wait(max(0.0, self._joins_until - time.monotonic()))

    def run(self) -> None:
        """Keep a connection to the first node and process its messages until it releases this node."""
        while not self._is_over():
            if self._session is None:
                self._connect()
            sessions = [self._session] if self._session is not None else []
            ready = self._wait(sessions, seconds=self._pause())
            try:
                self._talk(ready)
            except PeerClosed as error:
                self._lose(error)
            self._judge()
        self._drop()

    def _is_over(self) -> bool:
        if not self._left:
            return False
        is_alone = self.verdict is not None and self._session is None
        # The first node must learn that this one is done, or it would count it as lost.
        wait = max(FAREWELL_SECONDS, self._membership.lost_after) if self.verdict is None else FAREWELL_SECONDS
        return self._is_free or is_alone or time.monotonic() > self._left_at + wait

    def _pause(self) -> float:
        until_try = max(0.0, self._next_try - time.monotonic())
        return TICK_SECONDS if self._session is not None else min(TICK_SECONDS, until_try)

    def _lose(self, error: PeerClosed) -> None:
        """Close the connection."""
        if self._session is not None and self._session.is_known and not isinstance(error, Unreachable):
            self._note_closed()
        self._drop()

    def _note_closed(self) -> None:
        if self._closed_at is None:
            self._closed_at = time.monotonic()

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        self._reported_as = None

    def _connect(self) -> None:
        now = time.monotonic()
        if now < self._next_try:
            return
        is_joining = not self._has_joined and now < self._joins_until
        # Hundreds of nodes refused at once must not all retry at once.
        jitter = 0.5 + os.urandom(1)[0] / 255
        self._next_try = now + jitter * (_JOIN_RETRY_SECONDS if is_joining else _RETRY_SECONDS)
        where = (self._membership.address, self._membership.port)
        try:
            connection = socket.create_connection(where, _CONNECT_SECONDS)
        except ConnectionRefusedError:
            # The machine is up, but the first node's supervisor is not running.
            self._note_closed()
            return
        except OSError:
            return
        with suppress(PeerClosed):
            self._session = PeerSession(connection, self._membership.secret, self._membership.rank)
            self._tried_at = now
            self._session.send({"beat": True})

    def _talk(self, ready: Set[Any]) -> None:
        session = self._session
        if session is None:
            return
        session.flush()
        messages = session.receive() if session in ready else []
        if session.is_known and not self._has_joined:
            # The first node has authenticated this one, so its silence counts from here on.
            self._has_joined = True
            self._joined.set()
        if session.is_known:
            self._closed_at = None
        if not session.is_known and time.monotonic() - self._tried_at > UNKNOWN_SECONDS:
            raise Unreachable("it has not answered")
        for message in messages:
            self._last_message_at = time.monotonic()
            self._take(session, message)
        if self._is_time_to_beat():
            session.send({"beat": True})
        self._report_state(session)

    def _take(self, session: PeerSession, message: Dict[str, Any]) -> None:
        if "ask" in message:
            evidence = self._own_evidence()
            session.send({"evidence": evidence.as_message() if evidence else {}})
        if "stop" in message:
            cause = read_cause(message["stop"], len(self._membership.servers))
            if cause is not None:
                self._decide(cause)
        if "bye" in message:
            self._is_free = True

    def _report_state(self, session: PeerSession) -> None:
        """Report this node's state, once per connection."""
        if self._reported is not None and self._reported_as is None:
            self._reported_as = "failed"
            cause = self._own_evidence() or self._reported
            session.send({"failed": cause.as_message()})
        if self._left and self._reported_as != "done":
            self._reported_as = "done"
            session.send({"done": True})

    def _judge(self) -> None:
        now = time.monotonic()
        if not self._has_joined:
            has_lost = now - self._last_message_at > JOIN_SECONDS
        else:
            has_lost = is_lost(now, self._last_message_at, self._closed_at, self._membership.lost_after)
        if has_lost:
            self._decide(silence_of(0, now - self._last_message_at, has_joined=self._has_joined))
