"""Bring home what jobs wrote in a copy: rename it into the project's folder, and leave a link in the copy.

While another job runs in the copy, nothing moves: the project's folder gets links to new files, and the last job of the
copy brings them. A name that is taken in the project is kept beside it, under the job's id. Each step leaves a state
that the next pass recognizes, so a pass may be killed anywhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from remote_tool.agent.frozen import copies, guests, moving
from remote_tool.agent.frozen.way import Homecoming, Way, listed
from remote_tool.protocol.lean.suppress import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Set

    from remote_tool.agent.frozen.copies import Copy
    from remote_tool.agent.frozen.guests import Guest, Jobs
    from remote_tool.agent.requests import Folders

# In our own folder: held while output is brought home.
_LOCK = "home-lock"
_PATIENCE = 60.0
# Of a request, which tries again with the next one.
_SHORT_PATIENCE = 5.0


def enter(copy: Copy, job_id: str, jobs: Jobs) -> None:
    """Link what the project has by now, and record that a job begins in a copy.

    Args:
        copy: The copy.
        job_id: The job.
        jobs: The project's jobs.

    Raises:
        OSError: The disk cannot be written.
    """
    lock = None
    with suppress(BlockingIOError):
        lock = _hold(copy.scripts, _PATIENCE)
    try:
        if guests.guests_of(copy.path) is None:
            guests.note_all(copy.path, jobs.of_copy(copy.name))
        guests.enter(copy.path, job_id, lambda: copies.link_new(copy))
    finally:
        if lock is not None:
            os.close(lock)


def bring(copy: Copy, jobs: Jobs, job_id: str = "", *, goes: bool = False) -> Homecoming:
    """Bring home what is in a copy only; while another job runs there, leave it and link it from the project.

    Args:
        copy: The copy.
        jobs: The project's jobs.
        job_id: The job that has ended; empty: find out which have.
        goes: Whether the copy will be removed: no job needs it.

    Raises:
        BlockingIOError: Another pass takes long.
        OSError: The copy cannot be read.
    """
    lock = _hold(copy.scripts, _PATIENCE if job_id else _SHORT_PATIENCE)
    try:
        known = guests.guests_of(copy.path)
        present = known or []
        others = [each.job_id for each in present if not each.is_over and each.job_id != job_id]
        if known is None and not job_id:
            others = jobs.of_copy(copy.name)  # a copy of an older version
        is_shared = not goes and any(map(jobs.may_write, others))
        if is_shared and known is None:
            return Homecoming()
        moving.follow_project(copy.code, copy.project, jobs.name, f"{copy.path}/{copies.SPARE}")
        writers = [job_id] if job_id else [each.job_id for each in present] or others
        way = Way(copy, present, writers[-1] if writers else copy.name, moves=not is_shared, stays=not goes)
        way.own_names = {os.path.basename(copy.scripts), jobs.name}
        way.bring_folder("", "", seen=False)
        if job_id and not (is_shared and way.result.stuck):
            guests.leave(copy.path, job_id)
        if not is_shared and not way.result.stuck:
            guests.forget(copy.path, [*(each.job_id for each in present), job_id])
        return way.result
    finally:
        if lock is not None:
            os.close(lock)


def bring_pending(folders: Folders, names: "Optional[Set[str]]" = None) -> None:
    """Bring home what jobs without a supervisor have left in copies, and what waited for the last job of its copy.

    Args:
        folders: The project's folders.
        names: Of these copies; None: of all.
    """
    jobs = guests.Jobs(folders.jobs)
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


def bring_whole(copy: Copy, folders: Folders) -> str:
    """Bring home everything before a copy is removed that no job needs; return why that is impossible."""
    try:
        stuck = bring(copy, guests.Jobs(folders.jobs), goes=True).stuck
    except OSError as error:
        return f"{copy.name}: {error.strerror}"
    return f"{listed([name for name, _ in stuck])} in {copy.name}: {stuck[0][1]}" if stuck else ""


def _is_pending(present: "Optional[List[Guest]]", jobs: Jobs) -> bool:
    if present is None:
        return True
    alive = [each for each in present if not each.is_over and jobs.may_write(each.job_id)]
    # While one runs, those that are over have been linked already.
    return any(each not in alive and not (alive and each.is_over) for each in present)


def _hold(scripts: str, patience: float) -> "Optional[int]":
    """Keep other passes away; None without locks.

    Raises:
        BlockingIOError: Another pass takes longer: two that move at once could replace a file by a link to itself.
    """
    try:
        file = os.open(f"{scripts}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(file)
                raise BlockingIOError(errno.EAGAIN, "the output of another job is still being brought home") from None
            time.sleep(0.02)
        except OSError:
            break
        else:
            break
    return file
