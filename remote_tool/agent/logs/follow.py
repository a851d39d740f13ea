"""Send the output of jobs as it appears, until all have ended or the client has disconnected."""

from __future__ import annotations

import time

from remote_tool.agent.logs.followed_job import FollowedJob
from remote_tool.agent.requests import Request, client_is_gone, is_flag, is_list
from remote_tool.agent.states import CachedScan
from remote_tool.protocol import job_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import AbstractSet, List, Optional, Sequence

    from remote_tool.agent.logs.inotify import FolderChanges

# Polling interval in seconds without inotify.
_SHORTEST_PAUSE = 0.01
_LONGEST_PAUSE = 0.05
# Polling interval with inotify: another machine may write, or a supervisor die.
_LOOK_SECONDS = 0.5
# inotify is no longer trusted after this many polls in a row that find unreported output.
_MOST_SURPRISES = 2
# A line and its newline, which Python's print() writes separately, are sent together.
_GATHER_SECONDS = 0.0005
# Output in quick succession is batched, after the first piece.
_SHORTEST_REST = 0.001
_LONGEST_REST = 0.004


def follow(request: Request) -> None:
    """Answer op ``follow`` until every job has ended and been sent, or the client has disconnected."""
    folders = request.folders()
    asked = request.get("jobs", is_list)
    wait = request.get("wait", is_flag, default=True)
    output = request.get("streams", is_flag, default=True)
    jobs = job_folder.open_jobs_folder(folders.jobs)
    job_folder.allow_open_files(len(asked))
    scans = CachedScan()
    followed = [FollowedJob(jobs, job, scans, wait=wait, output=output) for job in asked]
    due: Optional[List[FollowedJob]] = followed
    poller = _Poller()
    while due is not None:
        scans.forget()
        sent = [job for job in due if _send(request, job)]
        followed = [job for job in followed if not job.is_done]
        if not followed:
            request.answer({"done": True})
            return
        due = poller.wait(followed, sent)


def _send(request: Request, job: FollowedJob) -> bool:
    """Send a job's new output; return whether there was any."""
    sent = False
    for message in job.advance():
        request.answer({"job": job.job_id, **message.header}, message.body)
        sent = True
    return sent


class _Poller:
    """Chooses the jobs to read next."""

    def __init__(self) -> None:
        self._by_changes: Optional[_ChangePoller] = None
        self._may_watch = True
        self._pause = 0.0

    def wait(self, followed: Sequence[FollowedJob], sent: Sequence[FollowedJob]) -> Optional[List[FollowedJob]]:
        """Wait until there may be more output; None when the client has disconnected.

        Args:
            followed: The followed jobs.
            sent: Jobs whose output was sent just now.
        """
        if self._by_changes is not None and not self._by_changes.is_reliable:
            self._by_changes.close()
            self._by_changes = None
        if self._by_changes is not None:
            return self._by_changes.wait(followed, sent)
        if self._may_watch and not sent:
            self._watch(followed)
            return None if client_is_gone(0) else list(followed)
        self._pause = 0.0 if sent else min(max(self._pause * 1.3, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        return None if client_is_gone(self._pause) else list(followed)

    def _watch(self, followed: Sequence[FollowedJob]) -> None:
        """Start watching; output written before is read by one more poll."""
        self._may_watch = False
        try:
            from remote_tool.agent.logs.inotify import FolderChanges  # noqa: PLC0415 - some Pythons lack ctypes, and most calls do not need it

            self._by_changes = _ChangePoller(FolderChanges(), followed)
        except (ImportError, OSError, AttributeError):
            return


class _ChangePoller:
    """inotify events, plus an occasional poll of everything."""

    def __init__(self, changes: FolderChanges, followed: Sequence[FollowedJob]) -> None:
        self._changes = changes
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._rest = _SHORTEST_REST
        self._unreported: AbstractSet[str] = frozenset()
        self._surprises = 0
        for job in followed:
            job.watch(changes)

    @property
    def is_reliable(self) -> bool:
        return self._changes.is_complete and self._surprises < _MOST_SURPRISES

    def close(self) -> None:
        """Stop watching."""
        self._changes.close()

    def wait(self, followed: Sequence[FollowedJob], sent: Sequence[FollowedJob]) -> Optional[List[FollowedJob]]:
        """Wait for a change or for the next poll."""
        if self._is_left(is_behind=any(job.is_behind for job in followed)):
            return None
        changed = self._changes.take()
        reported = {job.job_id for job in followed} if changed is None else changed.keys()
        self._count_surprises({job.job_id for job in sent if not job.is_done} & (self._unreported - reported), sent)
        is_due = time.monotonic() >= self._next_look
        if is_due:
            self._next_look = time.monotonic() + _LOOK_SECONDS
        chosen = [job for job in followed if is_due or job.is_behind or job.job_id in reported]
        self._unreported = {job.job_id for job in chosen if not job.is_behind} - reported
        for job in chosen:
            if changed is None or changed.get(job.job_id):
                job.expect_streams()
        return chosen

    def _is_left(self, *, is_behind: bool) -> bool:
        """Wait, unless a job has more to send; return whether the client has disconnected."""
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
