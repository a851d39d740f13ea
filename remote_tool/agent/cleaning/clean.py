"""Remove finished jobs, the copies of the project that only they needed, older versions, and leftovers."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress

from remote_tool.agent.cleaning import clean_all, leftovers
from remote_tool.agent.cleaning.leftovers import NOT_ALL, item
from remote_tool.agent.cleaning.removal import Removal
from remote_tool.agent.frozen import copies, home, way
from remote_tool.agent.requests import Request, is_flag, is_list
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.protocol.records import SPEC, RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set

    from remote_tool.agent.requests import Folders

# The client waits a minute for an answer, and asks again while there is more.
_SECONDS = 20.0
_PATIENCE = 10.0
COPIES, BESIDE = "copies of the project", "outputs under a job's id"
_BLOCK = 512
_LONGEST_WHY = 1000


def clean(request: Request) -> None:
    """Answer op ``clean``: list our files, and remove these jobs and unused files, unless ``dry_run``.

    ``removed`` and ``gone`` name jobs that no longer exist; ``kept`` says why others remain, and ``young`` names those
    that ended less than ``older`` seconds ago. ``more`` asks for another call.
    With ``everything``, all our files are removed, unless a job is running.
    """
    folders = request.folders()
    dry_run = request.get("dry_run", is_flag)
    deadline = time.monotonic() + _SECONDS
    ids = [name for name in request.get("ids", is_list) if is_job_id(name)]
    scripts = _open(folders.scripts)
    if scripts is not None and not dry_run:
        _lock_cleaning(scripts)
    older = request.get("older", _is_age, default=None)
    removal = Removal(folders, dry_run=dry_run, deadline=deadline, older=older)
    if not dry_run:
        _bring_home(folders)
    if request.get("everything", is_flag, default=False):
        items = clean_all.clean_all(removal, request, scripts)
    else:
        removal.remove_jobs(ids)
        others: List[Dict[str, Any]] = []
        if not request.get("jobs_only", is_flag, default=False):
            others = leftovers.clean(folders, scripts, request, dry_run=dry_run, deadline=deadline)
        # Measuring many jobs may take all the remaining time.
        items = [removal.jobs_item(), *_clean_copies(removal), *others]
    request.answer({**removal.as_answer(), "items": items})


def remove_some(jobs: int, request: Request, seconds: float, copies_folder: int = -1) -> Dict[str, Any]:
    """Remove jobs as part of another operation, within a number of seconds; return the result.

    ``clean`` names them, and they ended at least ``older`` seconds ago. ``copies_folder`` is a descriptor of the folder
    of copies that the operation has locked, if any.
    """
    ids, older = request.get("clean", is_list), request.get("older", _is_age, default=None)
    removal = Removal(request.folders(), dry_run=False, deadline=time.monotonic() + seconds, jobs=jobs, older=older)
    try:
        _bring_home(request.folders())
        removal.remove_jobs([name for name in ids if is_job_id(name)], sized=False)
        if removal.removed:
            _clean_copies(removal, copies_folder, sized=False)
    except OSError as error:
        removal.kept.append({"id": "", "why": str(error.strerror)})
    return removal.as_answer()


def _is_age(value: object) -> bool:
    return value is None or is_seconds(value)


def _bring_home(folders: Folders) -> None:
    """Bring output from copies into the project while the jobs that wrote it are known."""
    if os.path.isdir(folders.copies):
        home.bring_pending(folders)


def _lock_cleaning(scripts: int) -> None:
    """Exclude other cleans of this project, where the file system supports locks."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(scripts, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if removing.is_over(deadline):
                raise RequestError(
                    "Another clean is running on this server", hint="Run remote-tool clean again later"
                ) from None
            time.sleep(0.05)
        except OSError:
            return
        else:
            return


def _open(path: str) -> Optional[int]:
    try:
        return job_folder.open_folder(path)
    except OSError:
        return None


def _clean_copies(removal: Removal, held: int = -1, *, sized: bool = True) -> List[Dict[str, Any]]:
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
        return [_remove_copies(removal, folder, sized=sized), *beside]
    finally:
        if held < 0:
            os.close(folder)
        else:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_SH)


def _remove_copies(removal: Removal, folder: int, *, sized: bool) -> Dict[str, Any]:
    names = removing.names_in(folder)
    sizes = {name: _size_of_copy(removal, name) if sized else 0 for name in names}
    # Locked, because a start needs a copy before its jobs have folders.
    is_locked = _lock_copies(folder)
    needed = _find_needed_copies(removal)
    to_remove: List[str] = []
    stuck = ""
    if is_locked and needed is not None:
        to_remove = [name for name in names if not (name in needed or _is_wanted(removal, name))]
        if not removal.dry_run:
            stuck = _bring_copies_home(removal, to_remove)
        for name in to_remove if not removal.dry_run else ():
            removing.set_aside(folder, name)
    row = item(COPIES, len(names), sum(sizes.values()), len(to_remove), sum(sizes[name] for name in to_remove))
    if not is_locked:
        return {**row, "why": "a job is starting"}
    if needed is None:
        return {**row, "why": "a job's record cannot be read"}
    is_removed = removal.dry_run or removing.remove_marked(folder, removal.deadline)
    return {**row, "why": stuck} if is_removed else {**row, "why": NOT_ALL}


def _is_wanted(removal: Removal, name: str) -> bool:
    return copies.is_wanted(f"{removal.folders.copies}/{name}")


def _bring_copies_home(removal: Removal, to_remove: List[str]) -> str:
    """Bring output of jobs into the project; keep a copy where that fails, and return why."""
    why = ""
    for copy in [each for each in copies.copies_in(removal.folders) if each.name in to_remove]:
        stuck = home.bring_whole(copy, removal.folders)
        if stuck:
            to_remove.remove(copy.name)
            why = stuck
    return why[:_LONGEST_WHY]


def _list_beside(removal: Removal) -> List[Dict[str, Any]]:
    """Return a row for files that jobs wrote under a name which the project already had."""
    found = [name for copy in copies.copies_in(removal.folders) for name in way.kept_beside(copy)]
    if not found:
        return []
    size = sum(os.lstat(f"{removal.folders.project}/{name}").st_size for name in found)
    return [{**item(BESIDE, len(found), size, 0, 0), "why": way.listed(found)[:_LONGEST_WHY]}]


def _lock_copies(folder: int) -> bool:
    """Lock the folder, unless a start holds it; without locks, a start may be underway."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _find_needed_copies(removal: Removal) -> Optional[Set[str]]:
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


def _size_of_copy(removal: Removal, name: str) -> int:
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
