"""The supervisors of a launch watch each other, so that none trains on alone when another node has gone.

The first node's supervisor listens on the address where the nodes meet; the others connect to it. Every second each
says that it lives. When a node fails, is killed, or is lost, the first node asks the others what they saw, decides what
came first, and tells everybody to stop. A node that has lost the first one stops by itself. No laptop is needed for
any of it.

A node is lost soon after its connection was closed, which is what happens when its supervisor dies or its machine
reboots, unless it connects again. Mere silence proves nothing, as a cable that was pulled may be plugged in again: only
after ``lost_after`` seconds of it a node is lost.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from remote_tool.agent.launch.cause import FAILED, Cause, Membership, find_rank_error
from remote_tool.protocol.lean.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Set, Union

    from remote_tool.agent.launch.wire import Session

BEAT_SECONDS = 1.0
# A node whose connection was closed has this long to connect again. With the grace of a cause the rest has stopped
# within 15 seconds.
GONE_SECONDS = 8.0
# All nodes are started at once, but one of them may be slow to log in to.
JOIN_SECONDS = 60.0
TICK_SECONDS = 0.25
_VERDICT_SECONDS = 3.0
FAREWELL_SECONDS = 10.0
# Whoever connects shows within this long that it knows the secret of the launch.
UNKNOWN_SECONDS = 5.0


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

    def wait_to_join(self) -> None:
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
        has_failed = self._reported is not None and self._reported.kind == FAILED
        rank_error = find_rank_error(self._folder, self._membership, has_ended=has_failed)
        if self._reported is None or (rank_error and has_failed):
            return rank_error
        return self._reported._replace(age=time.monotonic() - self._reported_at)

    def _wait(self, sessions: List[Session], *others: socket.socket, seconds: float = TICK_SECONDS) -> Set[Any]:
        """Wait until one of them has something to read, or takes what it could not take before."""
        # select() knows no descriptor above 1,023.
        poll = select.poll()
        sources: List[Union[Session, socket.socket]] = [self._woken, *others, *sessions]
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


def is_lost(now: float, heard: float, gone_since: Optional[float], lost_after: float) -> bool:
    """Whether a node that has joined is lost: it was silent too long, or has gone and did not come back."""
    return now - heard > lost_after or (gone_since is not None and now - gone_since > GONE_SECONDS)
