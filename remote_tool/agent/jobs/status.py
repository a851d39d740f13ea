"""Report the status of jobs."""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.agent import states
from remote_tool.agent.cleaning import removed_jobs
from remote_tool.agent.requests import Folders, Request, is_list
from remote_tool.protocol import fingerprints, job_folder, strict_json
from remote_tool.protocol.errors import NO_SUCH_JOB
from remote_tool.protocol.framing import HEADER_LIMIT
from remote_tool.protocol.records import RecordError, is_job_id
from remote_tool.protocol.streams import last_output, stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from remote_tool.agent.states import HostSnapshot

# The client asks again for jobs beyond this size; space is reserved for the last one.
_ANSWER_LIMIT = HEADER_LIMIT // 2


def status(request: Request) -> None:
    """Answer op ``status``: the requested jobs or all of them, and the unreadable folders.

    A client that knows many finished jobs sends fingerprints as ``ended``: beyond the ``known`` jobs, only ids are
    returned, as ``unsure``, and only those of buckets that differ.

    ``more`` says that there are others, for a client that skips these. ``folder_id`` identifies the folder: a job
    missing from another one, such as an empty disk mounted in its place, may still exist. ``left`` lists
    ``known`` jobs without a folder here but with living processes; ``removed``, those that were cleaned.
    """
    folders = request.folders()
    ids = request.get("ids", lambda value: value is None or is_list(value))
    skip = request.get("skip", is_list, default=[])
    known = request.get("known", is_list, default=[])
    jobs = job_folder.open_jobs_folder(folders.jobs)
    ended = request.get("ended", lambda value: value is None or fingerprints.is_fingerprints(value))
    names, unsure = _leave_out_ended(_names(jobs, ids, skip), known, ended)
    host = states.scan()
    answers: List[Dict[str, Any]] = []
    bad: List[Dict[str, Any]] = []
    size = 0
    for name in names:
        answer: Dict[str, Any] = {"name": _printable(name)}
        try:
            answer = _describe(jobs, name, host, tail=name in known)
            answers.append(answer)
        except RecordError as error:
            bad.append({**answer, "why": str(error)})
        except OSError as error:
            # This says nothing about the job: the next scan may find it unchanged.
            bad.append({**answer, "why": str(error.strerror), "errno": error.errno})
        size += len(strict_json.encode(answer))
        if size > _ANSWER_LIMIT:
            break
    missing = [name for name in known if is_job_id(name) and (jobs is None or not job_folder.exists(jobs, name))]
    request.answer(
        {
            "now": host.now,
            "identity": host.place,
            "folder_id": job_folder.read_folder_id(jobs),
            "jobs": answers,
            "bad": bad,
            "left": _processes_left_of(missing, host),
            "removed": _removed_of(jobs, missing),
            **unsure,
            "more": size > _ANSWER_LIMIT,
        }
    )
    _bring_home(folders, answers)


def _bring_home(folders: Folders, answers: List[Dict[str, Any]]) -> None:
    """Bring the output of lost jobs from their copies into the project."""
    left = {each["spec"].get("copy") for each in answers if each["state"] == "lost" and not each["alive"]} - {"", None}
    if left:
        from remote_tool.agent.frozen import home  # noqa: PLC0415 - few lost jobs ran in a copy

        # The next start or clean tries again.
        with suppress(OSError):
            home.bring_pending(folders, left)


def _leave_out_ended(
    names: List[str], known: List[Any], ended: Optional[str]
) -> Tuple[List[str], Dict[str, List[Any]]]:
    """Return the jobs to describe, and the ids in buckets that differ from the client's."""
    if not ended:
        return names, {}
    asked = set(known)
    others = [name for name in names if name not in asked and is_job_id(name)]
    buckets = fingerprints.unlike(fingerprints.fingerprints(others), ended)
    unsure = [name for name in others if fingerprints.bucket_of(name) in buckets] if buckets else []
    left_out = set(others)
    return [name for name in names if name not in left_out], {"unsure": unsure, "buckets": sorted(buckets)}


def _removed_of(jobs: Optional[int], missing: List[str]) -> List[Dict[str, Any]]:
    """Return how removed jobs ended."""
    if jobs is None or not missing:
        return []
    known = removed_jobs.recall(jobs)
    return [known[name].as_answer() for name in missing if name in known]


def _processes_left_of(missing: List[str], host: HostSnapshot) -> List[Dict[str, Any]]:
    """Return the number of living processes of each job without a folder here."""
    counts = {name: len(host.snapshot.members(name, "")) for name in missing}
    return [{"id": name, "count": count} for name, count in counts.items() if count]


def _names(jobs: Optional[int], ids: Optional[List[Any]], skip: List[Any]) -> List[str]:
    left_out = {name for name in skip if isinstance(name, str)}
    if ids is None:
        ids = [] if jobs is None else sorted(name for name in os.listdir(jobs) if not name.startswith("."))
    return [name for name in ids if isinstance(name, str) and name not in left_out]


def _describe(jobs: Optional[int], name: str, host: HostSnapshot, *, tail: bool) -> Dict[str, Any]:
    if not is_job_id(name):
        raise RecordError("this cannot be the name of a job")
    folder = job_folder.open_job(jobs, name)
    if folder is None:
        raise RecordError(NO_SUCH_JOB)
    try:
        answer = states.judge(folder, name, host).as_answer(name)
        answer["sizes"] = stream_sizes(folder)
        if tail:
            answer["tail"] = last_output(folder)
    finally:
        os.close(folder)
    return answer


def _printable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
