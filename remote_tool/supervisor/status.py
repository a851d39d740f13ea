"""Telling how jobs stand."""

from __future__ import annotations

import os

from . import job_files, states
from .framing import HEADER_LIMIT
from .records import RecordError, is_job_id
from .requests import Request, is_list
from .streams import stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from .states import Here

_SHORT_COMMAND = 100
# Leaves room for what an estimate misses.
_ANSWER_LIMIT = HEADER_LIMIT // 2


def status(request: Request) -> None:
    """Answer op ``status``: the jobs asked for, or all of them, and the folders that cannot be read."""
    folders = request.folders()
    ids = request.get("ids", lambda value: value is None or is_list(value))
    skip = request.get("skip", is_list, default=[])
    jobs = job_files.open_jobs_folder(folders.jobs)
    here = states.look()
    answers: List[Dict[str, Any]] = []
    bad: List[Dict[str, str]] = []
    for name in _names(jobs, ids, skip):
        try:
            answers.append(_describe(jobs, name, here))
        except (RecordError, OSError) as error:
            why = str(error) if isinstance(error, RecordError) else str(error.strerror)
            bad.append({"name": _printable(name), "why": why})
    _shorten(answers)
    request.answer({"now": here.now, "identity": here.place, "jobs": answers, "bad": bad})


def _names(jobs: Optional[int], ids: Optional[List[Any]], skip: List[Any]) -> List[str]:
    if ids is not None:
        return [name for name in ids if isinstance(name, str)]
    if jobs is None:
        return []
    left_out = {name for name in skip if isinstance(name, str)}
    return sorted(name for name in os.listdir(jobs) if not name.startswith(".") and name not in left_out)


def _describe(jobs: Optional[int], name: str, here: Here) -> Dict[str, Any]:
    if not is_job_id(name):
        raise RecordError("this cannot be the name of a job")
    if jobs is None:
        raise RecordError("there is no such job on this server")
    try:
        folder = job_files.open_folder(name, jobs)
    except FileNotFoundError as error:
        raise RecordError("there is no such job on this server") from error
    except OSError as error:
        raise RecordError(f"is not a plain folder: {error.strerror}") from error
    try:
        answer = states.judge(folder, name, here).as_answer(name)
        answer["sizes"] = stream_sizes(folder)
    finally:
        os.close(folder)
    return answer


def _shorten(answers: List[Dict[str, Any]]) -> None:
    """Cut the commands when the answer would be larger than a client takes."""
    if sum(len(answer["spec"]["command"]) * 6 + 2048 for answer in answers) > _ANSWER_LIMIT:
        for answer in answers:
            answer["spec"]["command"] = answer["spec"]["command"][:_SHORT_COMMAND]


def _printable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
