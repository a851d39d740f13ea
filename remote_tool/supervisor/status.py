"""Telling how jobs stand."""

from __future__ import annotations

import os

from . import job_files, quick_json, states
from .framing import HEADER_LIMIT
from .records import RecordError, is_job_id
from .requests import Request, is_list
from .streams import stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from .states import Here

# The client asks again for what a larger answer would hold; room is left for the last job.
_ANSWER_LIMIT = HEADER_LIMIT // 2


def status(request: Request) -> None:
    """Answer op ``status``: the jobs asked for, or all of them, and the folders that cannot be read.

    ``more`` says that there are others, for a client that skips these.
    """
    folders = request.folders()
    ids = request.get("ids", lambda value: value is None or is_list(value))
    skip = request.get("skip", is_list, default=[])
    jobs = job_files.open_jobs_folder(folders.jobs)
    here = states.look()
    answers: List[Dict[str, Any]] = []
    bad: List[Dict[str, Any]] = []
    size = 0
    for name in _names(jobs, ids, skip):
        told: Dict[str, Any] = {"name": _printable(name)}
        try:
            told = _describe(jobs, name, here)
            answers.append(told)
        except RecordError as error:
            bad.append({**told, "why": str(error)})
        except OSError as error:
            # It says nothing of the job: the next look may find it as it was.
            bad.append({**told, "why": str(error.strerror), "errno": error.errno})
        size += len(quick_json.dumps(told))
        if size > _ANSWER_LIMIT:
            break
    request.answer({"now": here.now, "identity": here.place, "jobs": answers, "bad": bad, "more": size > _ANSWER_LIMIT})


def _names(jobs: Optional[int], ids: Optional[List[Any]], skip: List[Any]) -> List[str]:
    left_out = {name for name in skip if isinstance(name, str)}
    if ids is None:
        ids = [] if jobs is None else sorted(name for name in os.listdir(jobs) if not name.startswith("."))
    return [name for name in ids if isinstance(name, str) and name not in left_out]


def _describe(jobs: Optional[int], name: str, here: Here) -> Dict[str, Any]:
    if not is_job_id(name):
        raise RecordError("this cannot be the name of a job")
    folder = job_files.open_job(jobs, name)
    if folder is None:
        raise RecordError("there is no such job on this server")
    try:
        answer = states.judge(folder, name, here).as_answer(name)
        answer["sizes"] = stream_sizes(folder)
    finally:
        os.close(folder)
    return answer


def _printable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
