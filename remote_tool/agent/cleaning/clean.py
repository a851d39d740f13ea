"""Cleaning: removing jobs that have ended, and what is left of older versions, of broken syncs and of half a setup."""

from __future__ import annotations

import fcntl
import time

from remote_tool.agent.cleaning import leftovers
from remote_tool.agent.cleaning.removal import Removal
from remote_tool.agent.requests import Folders, Request, is_flag, is_list
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.records import is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

# The client waits a minute for an answer, and asks again while there is more.
_SECONDS = 20.0
_PATIENCE = 10.0


def clean(request: Request) -> None:
    """Answer op ``clean``: say what there is of ours, and remove these jobs and what nobody uses, unless ``dry_run``.

    ``removed`` and ``gone`` name the jobs that are not there any more, ``kept`` says why others are. ``more`` asks for
    another call. With ``everything`` all goes that is ours, unless a job runs.
    """
    folders = request.folders()
    dry_run = request.get("dry_run", is_flag)
    deadline = time.monotonic() + _SECONDS
    ids = [name for name in request.get("ids", is_list) if is_job_id(name)]
    scripts = _open(folders.scripts)
    if scripts is not None and not dry_run:
        _be_alone(scripts)
    removal = Removal(folders, dry_run=dry_run, deadline=deadline)
    if request.get("everything", is_flag, default=False):
        from remote_tool.agent.cleaning import clean_all  # noqa: PLC0415 - seldom wanted

        items = clean_all.clean_all(removal, request, scripts)
    else:
        removal.remove_jobs(ids)
        others: List[Dict[str, Any]] = []
        if not request.get("jobs_only", is_flag, default=False):
            others = leftovers.clean(folders, scripts, request, dry_run=dry_run, deadline=deadline)
        # To count what many jobs take may need all the time that is left.
        items = [removal.jobs_item(), *others]
    request.answer({**removal.as_answer(), "items": items})


def remove_some(jobs: int, folders: Folders, ids: List[Any], seconds: float) -> Dict[str, Any]:
    """Remove jobs beside another operation, for so many seconds at most; return what became of them."""
    removal = Removal(folders, dry_run=False, deadline=time.monotonic() + seconds, jobs=jobs)
    try:
        removal.remove_jobs([name for name in ids if is_job_id(name)], sized=False)
    except OSError as error:
        removal.kept.append({"id": "", "why": str(error.strerror)})
    return removal.as_answer()


def _be_alone(scripts: int) -> None:
    """Let no other clean work in the project meanwhile, where the file system can lock."""
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
