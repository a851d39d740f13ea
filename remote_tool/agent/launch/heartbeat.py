"""Supervisors of a launch monitor each other, so that no node keeps training after another has ended.

The first node's supervisor listens on the rendezvous address; the others connect to it and send a heartbeat every
second. When a node fails, is killed or is lost, the first node collects what the others saw, decides which event came
first, and tells all to stop. A node that has lost the first one stops on its own. This works without the client's
computer.

A node is lost soon after its connection closes, which happens when its supervisor dies or its machine reboots, unless
it reconnects. Silence alone proves nothing, since an unplugged cable may be plugged in again: a silent node is lost
only after ``lost_after`` seconds.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time

from remote_tool.agent.launch.cause import FAILED, Cause, Membership, find_rank_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Set, Union

    from remote_tool.agent.launch.wire import PeerSession

BEAT_SECONDS = 1.0
# A node whose connection was closed has this long to reconnect. Including the grace period of a cause, the other nodes
# stop within 15 seconds.
RECONNECT_SECONDS = 8.0
# All nodes are started at once, but logging in to one of them may be slow.
JOIN_SECONDS = 60.0
TICK_SECONDS = 0.25
_VERDICT_SECONDS = 3.0
FAREWELL_SECONDS = 10.0
# A peer must prove within this time that it knows the launch's secret.
UNKNOWN_SECONDS = 5.0


class Watch(threading.Thread):
    """A node's part in monitoring the launch.

    Attributes:
        verdict: Why the launch ends, once decided.
    """

    def __init__(self, membership: Membership, folder: int) -> None:
        """Initialize; ``start`` begins.

        Args:
            membership: The node's place in the launch.
            folder: Descriptor of the job's folder, where its ranks record their errors.
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

    def wait_to_join(self) -> None:
        """Wait briefly until the first node has authenticated this one."""

    def report(self, cause: Cause) -> None:
        """Report that this node's command has failed, or that the user is killing it."""
        self._reported, self._reported_at = cause, time.monotonic()
        self._wake.send(b"1")

    def wait_for_verdict(self) -> Optional[Cause]:
        """Wait briefly for the nodes to agree on the first cause."""
        self._decided.wait(_VERDICT_SECONDS)
        return self.verdict

    def leave(self) -> None:
        """Report that this node is done, and keep serving the others for as long as they need it."""
        self._left_at = time.monotonic()
        self._left = True
        self._wake.send(b"1")
        self.join()

    def run(self) -> None:
        """Take part until this node has left and no other needs it."""
        raise NotImplementedError

    def _decide(self, cause: Cause) -> None:
        if self.verdict is None:
            self.verdict, self._decided_at = cause, time.monotonic()
            self._decided.set()
            # The supervisor sleeps until a signal.
            os.kill(os.getpid(), signal.SIGUSR1)

    def _own_evidence(self) -> Optional[Cause]:
        """Return the failure of this node, if any: a rank's own error precedes the end of the command."""
        has_failed = self._reported is not None and self._reported.kind == FAILED
        rank_error = find_rank_error(self._folder, self._membership, has_ended=has_failed)
        if self._reported is None or (rank_error and has_failed):
            return rank_error
        return self._reported._replace(age=time.monotonic() - self._reported_at)

    def _wait(self, sessions: List[PeerSession], *others: socket.socket, seconds: float = TICK_SECONDS) -> Set[Any]:
        """Wait until a session is readable, or a blocked one is writable."""
        # select() takes no descriptor above 1023.
        poll = select.poll()
        sources: List[Union[PeerSession, socket.socket]] = [self._woken, *others, *sessions]
        waiting = {each.fileno(): each for each in sources}
        for number in waiting:
            poll.register(number, select.POLLIN)
        for session in sessions:
            if session.has_unsent:
                poll.modify(session, select.POLLIN | select.POLLOUT)
        ready = {waiting[number] for number, _ in poll.poll(seconds * 1000)}
        if self._woken in ready:
            self._woken.recv(64)
        return ready

    def _is_time_to_beat(self) -> bool:
        now = time.monotonic()
        if now < self._next_beat:
            return False
        self._next_beat = now + BEAT_SECONDS
        return True


def is_lost(now: float, last_message_at: float, closed_at: Optional[float], lost_after: float) -> bool:
    """Return whether a joined node is lost: silent for too long, or disconnected without reconnecting."""
    is_silent = now - last_message_at > lost_after
    return is_silent or (closed_at is not None and now - closed_at > RECONNECT_SECONDS)
