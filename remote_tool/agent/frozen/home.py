"""Bring home the files that jobs wrote in a copy: rename them into the project, and leave links in the copy.

While another job runs in the copy, or a sync to the project takes long, nothing moves: the project's folder gets links
to new files, and the last job of the copy, or the next start or clean, brings them. A name that is taken in the project
is kept beside it, under the job's id. Each step leaves a state that the next pass recognizes, so a pass may be killed
anywhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

from remote_tool.agent.frozen import copies, copying, guests, locks, moving
from remote_tool.agent.frozen.way import Homecoming, Way, listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Set

    from remote_tool.agent.frozen.copies import Copy
    from remote_tool.agent.frozen.guests import Guest, ProjectJobs
    from remote_tool.agent.frozen.moving import Copier
    from remote_tool.agent.requests import Folders

    # Called with the path of a file that is copied, and the bytes that are.
    See = Callable[[str, int], None]

_PATIENCE = 60.0
# Of a request, which tries again with the next one; also for a sync, at the end of a job.
_SHORT_PATIENCE = 5.0


def enter(copy: Copy, job_id: str, jobs: ProjectJobs) -> None:
    """Link the project's new files, and record that a job begins in a copy.

    Args:
        copy: The copy.
        job_id: The job.
        jobs: The project's jobs.

    Raises:
        OSError: The disk cannot be written.
    """
    lock = None
    with suppress(BlockingIOError):
        lock = _keep_others_away(copy.scripts, _PATIENCE)
    try:
        if guests.guests_of(copy.path) is None:
            guests.note_all(copy.path, jobs.of_copy(copy.name))
        guests.enter(copy.path, job_id, lambda: copies.link_new(copy))
    finally:
        if lock is not None:
            os.close(lock)


def bring(
    copy: Copy,
    jobs: ProjectJobs,
    job_id: str = "",
    *,
    will_be_removed: bool = False,
    has_sync_lock: bool = False,
    see: Optional[See] = None,
) -> Homecoming:
    """Bring home the new files of a copy; while another job or a sync runs, link to them from the project.

    Args:
        copy: The copy.
        jobs: The project's jobs.
        job_id: The job that has ended; empty: find out which have.
        will_be_removed: Whether the copy is removed after this, as no job needs it.
        has_sync_lock: Whether this program keeps syncs away already.
        see: Called while a file is copied to another disk; an OSError of it ends that.

    Raises:
        BlockingIOError: Another pass takes long, or a sync while the copy has to go.
        OSError: The copy cannot be read.
    """
    lock = _keep_others_away(copy.scripts, _PATIENCE if job_id else _SHORT_PATIENCE)
    sync = locks.SyncLock(copy.scripts, _SHORT_PATIENCE, has_it=has_sync_lock)
    try:
        if will_be_removed and not sync.is_free:
            raise BlockingIOError(errno.EAGAIN, "a sync is running")
        known = guests.guests_of(copy.path)
        present = known or []
        others = [each.job_id for each in present if not each.is_over and each.job_id != job_id]
        if known is None and not job_id:
            others = jobs.of_copy(copy.name)  # a copy of an older version
        is_shared = not will_be_removed and any(map(jobs.may_write, others))
        if is_shared and known is None:
            return Homecoming()
        moving.follow_project(copy.code, copy.project, jobs.name, f"{copy.path}/{copies.SPARE}")
        writers = [job_id] if job_id else [each.job_id for each in present] or others
        moves = sync.is_free and not is_shared
        way = Way(copy, present, writers[-1] if writers else copy.name, moves=moves, stays=not will_be_removed)
        way.own_names = {os.path.basename(copy.scripts), jobs.name}
        way.links_folders = sync.is_free
        way.copy_file = _copier(sync, see)
        way.bring_folder("", "", seen=False)
        if job_id and (moves or not way.result.stuck):
            guests.leave(copy.path, job_id)
        if moves and not way.result.stuck:
            guests.forget(copy.path, [*(each.job_id for each in present), job_id])
        return way.result
    finally:
        sync.release()
        if lock is not None:
            os.close(lock)


def bring_pending(folders: Folders, names: Optional[Set[str]] = None) -> None:
    """Bring home the files of jobs without a supervisor, and those that waited for the last job of their copy.

    Args:
        folders: The project's folders.
        names: Of these copies; None: of all.
    """
    jobs = guests.ProjectJobs(folders.jobs)
    for copy in copies.copies_in(folders):
        if names is None or copy.name in names:
            # A file that cannot be brought stays in its copy, and the next pass tries again.
            try:
                if _is_pending(guests.guests_of(copy.path), jobs):
                    bring(copy, jobs)
            except BlockingIOError:
                return
            except OSError:
                continue


def bring_whole(copy: Copy, folders: Folders, *, has_sync_lock: bool = False) -> str:
    """Bring home everything before a copy is removed that no job needs; return why that is impossible."""
    try:
        stuck = bring(copy, guests.ProjectJobs(folders.jobs), will_be_removed=True, has_sync_lock=has_sync_lock).stuck
    except OSError as error:
        return f"{copy.name}: {error.strerror}"
    return f"{listed([name for name, _ in stuck])} in {copy.name}: {stuck[0][1]}" if stuck else ""


def _is_pending(present: Optional[List[Guest]], jobs: ProjectJobs) -> bool:
    if present is None:
        return True
    alive = [each for each in present if not each.is_over and jobs.may_write(each.job_id)]
    # While one runs, those that are over have been linked already.
    return any(each not in alive and not (alive and each.is_over) for each in present)


def _keep_others_away(scripts: str, patience: float) -> Optional[int]:
    """Keep other passes away; None without locks.

    Raises:
        BlockingIOError: Another pass takes longer: two that move at once could replace a file by a link to itself.
    """
    try:
        return locks.hold(f"{scripts}/{locks.HOME}", fcntl.LOCK_EX, patience)
    except BlockingIOError:
        raise BlockingIOError(errno.EAGAIN, "the output of another job is still being brought home") from None
    except OSError:
        return None


def _copier(sync: locks.SyncLock, see: Optional[See]) -> Copier:
    """Return how to copy a file to another disk, which may take hours: syncs may run meanwhile."""

    def copy_file(path: str, new: str, status: os.stat_result) -> None:
        sync.without(lambda: copying.copy_file(path, new, status, see and (lambda done: see(path, done))))
        now = os.lstat(path)
        if (now.st_size, now.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise BlockingIOError(errno.EAGAIN, "it is still being written")

    return copy_file
