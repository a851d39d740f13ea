"""When to look at followed jobs: at once when the kernel tells that they wrote, again and again where it does not."""

from __future__ import annotations

import time

from remote_tool.agent.requests import client_is_gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import AbstractSet, List, Optional, Sequence

    from remote_tool.agent.logs.followed_job import FollowedJob
    from remote_tool.agent.logs.inotify import Changes

# Where the kernel does not tell of changes, all is looked at so often.
_SHORTEST_PAUSE = 0.01
_LONGEST_PAUSE = 0.05
# Where it does, all is looked at so often: another machine may write, or a supervisor die.
_LOOK_SECONDS = 0.5
# It is relied on no more when so many looks in a row find what it had not told of.
_MOST_SURPRISES = 2
# A line and its end, which Python's print() writes one after the other, are sent together.
_GATHER_SECONDS = 0.0005
# What comes in quick succession is sent together, the first of it at once.
_SHORTEST_REST = 0.001
_LONGEST_REST = 0.004


class Poller:
    """Says which jobs to look at next."""

    def __init__(self) -> None:
        self._listening: Optional[_Listening] = None
        self._may_listen = True
        self._pause = 0.0

    def wait(self, followed: Sequence[FollowedJob], sent: Sequence[FollowedJob]) -> Optional[List[FollowedJob]]:
        """Wait until there may be more; None when the client is gone.

        Args:
            followed: The jobs that are followed.
            sent: Of which something was sent just now.
        """
        if self._listening is not None and not self._listening.is_reliable:
            self._listening.close()
            self._listening = None
        if self._listening is not None:
            return self._listening.wait(followed, sent)
        if self._may_listen and not sent:
            self._listen(followed)
            return None if client_is_gone(0) else list(followed)
        self._pause = 0.0 if sent else min(max(self._pause * 1.3, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        return None if client_is_gone(self._pause) else list(followed)

    def _listen(self, followed: Sequence[FollowedJob]) -> None:
        """Have the kernel tell from now on; what was written until now is looked at once more."""
        self._may_listen = False
        try:
            from remote_tool.agent.logs.inotify import Changes  # noqa: PLC0415 - some Pythons lack ctypes, and most calls do not need it

            self._listening = _Listening(Changes(), followed)
        except (ImportError, OSError, AttributeError):
            return


class _Listening:
    """What the kernel tells of changes, and a look at everything now and then all the same."""

    def __init__(self, changes: Changes, followed: Sequence[FollowedJob]) -> None:
        self._changes = changes
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._rest = _SHORTEST_REST
        self._untold: AbstractSet[str] = frozenset()
        self._surprises = 0
        for job in followed:
            job.watch(changes)

    @property
    def is_reliable(self) -> bool:
        return self._changes.is_complete and self._surprises < _MOST_SURPRISES

    def close(self) -> None:
        """Listen no more."""
        self._changes.close()

    def wait(self, followed: Sequence[FollowedJob], sent: Sequence[FollowedJob]) -> Optional[List[FollowedJob]]:
        """Wait until something changed, or for the next look at everything."""
        if self._is_left(is_behind=any(job.is_behind for job in followed)):
            return None
        changed = self._changes.take()
        told = {job.job_id for job in followed} if changed is None else changed.keys()
        self._count_surprises({job.job_id for job in sent if not job.is_done} & (self._untold - told), sent)
        is_due = time.monotonic() >= self._next_look
        if is_due:
            self._next_look = time.monotonic() + _LOOK_SECONDS
        chosen = [job for job in followed if is_due or job.is_behind or job.job_id in told]
        self._untold = {job.job_id for job in chosen if not job.is_behind} - told
        for job in chosen:
            if changed is None or changed.get(job.job_id):
                job.expect_streams()
        return chosen

    def _is_left(self, *, is_behind: bool) -> bool:
        """Wait, unless a job has more to send; whether the client went."""
        if is_behind:
            return client_is_gone(0)
        if client_is_gone(self._rest):
            return True
        begin = time.monotonic()
        if client_is_gone(max(0.0, self._next_look - begin), self._changes.descriptor):
            return True
        is_quiet = time.monotonic() - begin > self._rest
        self._rest = _SHORTEST_REST if is_quiet else min(self._rest * 2, _LONGEST_REST)
        return client_is_gone(_GATHER_SECONDS)

    def _count_surprises(self, surprising: AbstractSet[str], sent: Sequence[FollowedJob]) -> None:
        if surprising:
            self._surprises += 1
        elif sent:
            self._surprises = 0
