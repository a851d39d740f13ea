"""Remove finished jobs, older versions, and leftovers of interrupted syncs and setups."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from remote_tool.agent.cleaning import clean_all, leftovers, unused_copies
from remote_tool.agent.cleaning.removal import Removal
from remote_tool.agent.frozen import home
from remote_tool.agent.requests import Request, is_flag, is_list
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.protocol.records import is_job_id

if TYPE_CHECKING:
    from remote_tool.agent.requests import Folders

# The client waits a minute for an answer, and asks again while there is more.
_SECONDS = 20.0
_PATIENCE = 10.0


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
        items = [removal.jobs_item(), *unused_copies.clean(removal), *others]
    request.answer({**removal.as_answer(), "items": items})


def remove_some(jobs: int, request: Request, seconds: float, copies: int = -1) -> Dict[str, Any]:
    """Remove jobs as part of another operation, within a number of seconds; return the result.

    ``clean`` names them, and they ended at least ``older`` seconds ago. ``copies`` is a descriptor of the folder of
    copies that the operation has locked, if any.
    """
    ids, older = request.get("clean", is_list), request.get("older", _is_age, default=None)
    removal = Removal(request.folders(), dry_run=False, deadline=time.monotonic() + seconds, jobs=jobs, older=older)
    try:
        _bring_home(request.folders())
        removal.remove_jobs([name for name in ids if is_job_id(name)], sized=False)
        if removal.removed:
            unused_copies.clean(removal, copies, sized=False)
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
