"""Remove copies of the project that no job runs in or ran in, once all of their output is in the project."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set

from remote_tool.agent.cleaning.leftovers import NOT_ALL, item
from remote_tool.agent.frozen import copies, home, way
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.records import SPEC, RecordError, is_job_id

if TYPE_CHECKING:
    from remote_tool.agent.cleaning.removal import Removal

COPIES, BESIDE = "copies of the project", "outputs under a job's id"
_BLOCK = 512
_LONGEST_WHY = 1000


def clean(removal: Removal, held: int = -1, *, sized: bool = True) -> List[Dict[str, Any]]:
    """Remove the copies that only removed jobs needed; return the rows.

    Args:
        removal: The removal of jobs.
        held: Descriptor of the folder of copies, if this program has locked it.
        sized: Whether to measure them.
    """
    try:
        folder = job_folder.open_folder(removal.folders.copies) if held < 0 else held
    except OSError:
        return [item(COPIES, 0, 0, 0, 0)]
    try:
        beside = _list_beside(removal) if sized else []
        return [_clean(removal, folder, sized=sized), *beside]
    finally:
        if held < 0:
            os.close(folder)
        else:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_SH)


def _clean(removal: Removal, folder: int, *, sized: bool) -> Dict[str, Any]:
    names = removing.names_in(folder)
    sizes = {name: _size_of(removal, name) if sized else 0 for name in names}
    # Locked, because a start needs a copy before its jobs have folders.
    is_locked = _lock(folder)
    needed = _needed(removal)
    gone: List[str] = []
    stuck = ""
    if is_locked and needed is not None:
        gone = [name for name in names if name not in needed and not _is_wanted(removal, name)]
        if not removal.dry_run:
            stuck = _bring_home(removal, gone)
        for name in gone if not removal.dry_run else ():
            removing.set_aside(folder, name)
    row = item(COPIES, len(names), sum(sizes.values()), len(gone), sum(sizes[name] for name in gone))
    if not is_locked:
        return {**row, "why": "a job is starting"}
    if needed is None:
        return {**row, "why": "a job's record cannot be read"}
    is_removed = removal.dry_run or removing.remove_marked(folder, removal.deadline)
    return {**row, "why": stuck} if is_removed else {**row, "why": NOT_ALL}


def _is_wanted(removal: Removal, name: str) -> bool:
    return copies.is_wanted(f"{removal.folders.copies}/{name}")


def _bring_home(removal: Removal, going: List[str]) -> str:
    """Bring home what jobs wrote; keep the copies where that fails, and return why."""
    why = ""
    for copy in [each for each in copies.copies_in(removal.folders) if each.name in going]:
        stuck = home.bring_whole(copy, removal.folders)
        if stuck:
            going.remove(copy.name)
            why = stuck
    return why[:_LONGEST_WHY]


def _list_beside(removal: Removal) -> List[Dict[str, Any]]:
    """Return a row for what jobs wrote under names that were taken in the project."""
    found = [name for copy in copies.copies_in(removal.folders) for name in way.kept_beside(copy)]
    if not found:
        return []
    size = sum(os.lstat(f"{removal.folders.project}/{name}").st_size for name in found)
    return [{**item(BESIDE, len(found), size, 0, 0), "why": way.listed(found)[:_LONGEST_WHY]}]


def _lock(folder: int) -> bool:
    """Lock the folder, unless a start holds it; without locks, a start may be underway."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _needed(removal: Removal) -> Optional[Set[str]]:
    """Return the copies of all jobs that remain; None if unknown."""
    needed = set()
    for name in [] if removal.jobs is None else os.listdir(removal.jobs):
        if not is_job_id(name) or (removal.dry_run and name in removal.removed):
            continue
        try:
            job = job_folder.open_job(removal.jobs, name)
            if job is None:
                continue
            try:
                record = job_folder.read_record(job, SPEC, name)
            finally:
                os.close(job)
        except (RecordError, OSError):
            return None
        needed.add(str((record or {}).get("copy") or ""))
    return needed


def _size_of(removal: Removal, name: str) -> int:
    """Return the bytes that the removal of a copy frees; files that it shares with the project do not count."""
    size = 0
    for path, folders, files in os.walk(os.path.join(removal.folders.copies, name)):
        if removing.is_over(removal.deadline):
            break
        for each in (*folders, *files):
            with suppress(OSError):
                found = os.lstat(os.path.join(path, each))
                is_shared = found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode)
                size += 0 if is_shared else found.st_blocks * _BLOCK
    return size
