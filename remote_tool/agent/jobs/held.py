"""Jobs that something else starts, such as the scheduler of a cluster: made now, started later on another machine.

Such a job has its folder, its copy of the code and ``held.json``, and no supervisor until op ``start`` takes it over.
Whoever starts it also knows how it ended if it did not live to record that.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from remote_tool.agent import states
from remote_tool.agent.jobs import new_folder, start
from remote_tool.agent.requests import is_flag, is_list, is_text
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.limits import LONGEST_REASON
from remote_tool.protocol.records import ENDED, HELD, SPEC, RecordError, end_without_record, is_job_id
from remote_tool.protocol.streams import last_output, stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from remote_tool.agent.requests import Request
    from remote_tool.agent.states import HostSnapshot, JobStatus

_QUEUED, _UNSEEN = "queued", {"queued", "elsewhere"}


def hold(request: Request) -> None:
    """Answer op ``hold``: validate ``jobs`` as op ``start`` does, and create their folders for ``by``.

    The answer has the same form; a job that was made before is ``already`` there.
    """
    again = request.get("again", is_flag, default=False)
    request.fields_of_errors["begun"] = again
    call, jobs = start.read_call(request, again=again)
    by = request.get("by", is_text)
    answers = []
    for job in jobs:
        answer: Dict[str, Any] = {"id": job.spec["id"], "spec": job.spec, "already": False, "begun": True}
        try:
            answer["already"] = not new_folder.hold(call.jobs, job, by)
            answer = {**answer, **_describe(call.jobs, job.spec["id"], states.scan())}
        except (RecordError, OSError) as error:
            answer.update(error=str(error), begun=again)
        answers.append(answer)
    request.answer({"jobs": answers, "folder_id": job_folder.make_folder_id(call.jobs), "now": time.time()})


def settle(request: Request) -> None:
    """Answer op ``settle``: record how jobs ended that left no record, and what others wait for; answer as ``status``.

    ``jobs`` are objects with ``id`` and ``reason``; with ``killed`` or ``failed``, it is over. A record of the job's
    own is never replaced. With ``again``, the moment of its last record, that attempt is over for the reason
    ``why``, and the job waits for the next one.
    """
    folders = request.folders()
    jobs = job_folder.open_jobs_folder(folders.jobs)
    host = states.scan()
    answers, copies = [], set()
    for each in request.get("jobs", is_list):
        if not isinstance(each, dict) or not is_job_id(each.get("id")) or not is_text(each.get("reason")):
            raise RequestError("The request contains a job without a valid id or reason")
        with suppress(RecordError, OSError):
            answer = _settle(jobs, each, host)
            if answer is not None:
                answers.append(answer)
                copies.add(answer["spec"].get("copy") if answer["ended"] else "")
    request.answer({"jobs": answers, "now": time.time()})
    if copies - {"", None}:
        from remote_tool.agent.frozen import home  # noqa: PLC0415 - few jobs run in copies

        # The next start or clean tries again.
        with suppress(OSError):
            home.bring_pending(folders, copies - {"", None})


def _settle(jobs: Optional[int], known: Dict[str, Any], host: HostSnapshot) -> Optional[Dict[str, Any]]:
    job_id = known["id"]
    folder = job_folder.open_job(jobs, job_id)
    if folder is None:
        return None
    try:
        # Several programs may look at once, and Slurm may begin the job meanwhile.
        new_folder.lock_records(folder)
        status = states.judge(folder, job_id, host)
        is_over = bool(known.get("killed") or known.get("failed"))
        # A login node may be one of the nodes as well.
        is_dead = status.state == "lost" and not status.members
        if is_over and status.held is not None and (status.state in _UNSEEN or is_dead):
            reason = known["reason"][:LONGEST_REASON]
            ended = end_without_record(job_id, reason, killed=bool(known.get("killed")))
            job_folder.write_record(folder, ENDED, ended)
        elif status.held is not None and known.get("again") and known["again"] == _latest_moment(status):
            new_folder.begin_again(folder, job_id, known["reason"], str(known.get("why")))
        elif not is_over and status.held is not None and status.state == _QUEUED:
            _note(folder, status, known["reason"])
    finally:
        os.close(folder)
    return _describe(jobs, job_id, host)


def _latest_moment(status: JobStatus) -> Optional[float]:
    """Return when the job ended, else when it began; None if it has not begun."""
    if status.ended is not None:
        return float(status.ended["ended_at"])
    return None if status.started is None else float(status.started["started_at"])


def _note(folder: int, status: JobStatus, reason: str) -> None:
    """Record what a job waits for, which those see who follow it."""
    assert status.held is not None
    if status.held["reason"] != reason:
        job_folder.write_record(folder, HELD, {**status.held, "reason": reason[:LONGEST_REASON]}, replace=True)


def _describe(jobs: Optional[int], job_id: str, host: HostSnapshot) -> Dict[str, Any]:
    folder = job_folder.open_job(jobs, job_id)
    if folder is None:
        raise RecordError(f"{SPEC}: is missing")
    try:
        answer = states.judge(folder, job_id, host).as_answer(job_id)
        return {**answer, "sizes": stream_sizes(folder), "tail": last_output(folder)}
    finally:
        os.close(folder)
