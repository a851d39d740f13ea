"""Read a server's answers about jobs, each field validated, and say how an answer changes a record."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.job import Job, JobState
from remote_tool.protocol import job_fields
from remote_tool.protocol.artifact_patterns import read_patterns
from remote_tool.protocol.job_fields import JOB_FIELDS, MOMENT, PATTERNS, SECONDS, STATE, TEXTS, is_count
from remote_tool.protocol.limits import REBOOTED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from remote_tool.protocol.job_fields import Field

JOB_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{32}")
STREAM = re.compile(r"out|err|ranks/[0-9]{1,6}/[0-9]{1,6}/(out|err|error)")
FOLDER_ID = re.compile(r"[0-9a-f]{32}")
LARGEST_COUNT = 2**22
# Status values are read from the ends of this many output files, each of this many characters.
LONGEST_TAIL = 4096
MOST_TAILS = 4
# A state in answers only: the job's processes are on another machine that shares the folder.
ELSEWHERE = "elsewhere"

GONE = "its folder is gone from the server"
CLEANED = "its folder was removed by clean"
NOT_ITS_FOLDER = "its server has another folder of jobs now, such as that of an empty disk"
UNKNOWN = "its server does not know it"

_BY_KIND = ((TEXTS, tuple), (PATTERNS, read_patterns), (STATE, JobState), (SECONDS, float), (MOMENT, float))
# How attributes are converted from record values.
CONVERTERS: dict[str, Callable[[Any], Any]] = {
    each.name: convert for each in JOB_FIELDS for kind, convert in _BY_KIND if each.kind is kind
}
_KEPT = [each for each in JOB_FIELDS if each.changes != job_fields.SEEN]
_BY_NAME = {each.name: each for each in JOB_FIELDS}


@dataclass(frozen=True)
class RemoteJob:
    """A job as its server reports it.

    Attributes:
        job: With key 0; the registry assigns keys.
        elsewhere: It runs on another machine that shares the folder.
        ran_elsewhere: It has ended, and apparently ran on another machine that shares the folder.
        sizes: Bytes of each output stream on the server.
    """

    job: Job
    elsewhere: bool = False
    ran_elsewhere: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


def parse_job(
    data: object, server: str, now: float, folder_id: str = "", *, patterns: Mapping[str, str] | None = None
) -> RemoteJob:
    """Validate and convert an entry of a server's ``status`` answer.

    ``folder_id`` is of the server's folder of jobs. ``patterns`` are the user's, for status values.

    Raises:
        JobError: A field is missing, of the wrong type, too large or invalid.
    """
    entry = _mapping(data, "job")
    job_id = _matching(entry.get("id"), JOB_ID, "id")
    state = _one_of(entry.get("state"), {*_REMOTE_STATES, ELSEWHERE})
    records = {
        job_fields.REQUEST: _mapping(entry.get("spec"), "spec"),
        job_fields.STARTED: _mapping(entry.get("started") or _put_back(entry), "started"),
        job_fields.ENDED: _mapping(entry.get("ended") or {}, "ended"),
        job_fields.ANSWER: {
            **entry,
            **_in_slurm(entry),
            "state": JobState.RUNNING.value if state == ELSEWHERE else state,
        },
    }
    if records[job_fields.REQUEST].get("id") != job_id:
        raise JobError(f"job {job_id}: its record belongs to another job", server=server)
    values = {each.name: _read(each, records[each.origin]) for each in JOB_FIELDS if each.origin in records}
    job = Job(
        key=0,
        seen_at=now,
        folder_id=folder_id,
        processes_left=_count_processes(entry.get("processes", [])) if state == JobState.LOST else 0,
        status_values=_status_values(entry.get("tail"), patterns or {}, has_ended=state in _FINISHED),
        **values,
    )
    return RemoteJob(
        job=job,
        elsewhere=state == ELSEWHERE,
        ran_elsewhere=entry.get("ran_here") is False,
        sizes=_sizes(entry.get("sizes") or {}),
    )


def _put_back(entry: Mapping[str, object]) -> dict[str, object]:
    """Return what is known of the attempts at a job that has not begun again since Slurm put it back."""
    attempts = _mapping(entry.get("held") or {}, "held").get("attempts")
    return {"failed_attempts": attempts} if attempts else {}


def _in_slurm(entry: Mapping[str, object]) -> dict[str, object]:
    """Return the batch job and the node of a job that Slurm starts."""
    held = _mapping(entry.get("held") or {}, "held")
    place = _mapping(_mapping(entry.get("started") or {}, "started").get("place") or {}, "place") if held else {}
    return {"slurm_job": held.get("reference"), "slurm_node": place.get("hostname")}


@dataclass(frozen=True)
class RemovedJob:
    """How a cleaned job ended, as its server recorded it."""

    id: str
    state: JobState
    exit_code: int | None
    signal: str | None
    ended_at: float | None


def parse_removed(data: object) -> RemovedJob:
    """Validate and convert an entry of ``removed`` in the server's ``status`` answer.

    Raises:
        JobError: A field is missing, of the wrong type or invalid.
    """
    entry = _mapping(data, "removed")
    state = JobState(_one_of(entry.get("state"), {state.value for state in JobState if state.is_finished}))
    return RemovedJob(
        _matching(entry.get("id"), JOB_ID, "id"),
        state,
        *(_read(_BY_NAME[name], entry) for name in ("exit_code", "signal", "ended_at")),
    )


def read_unsure(answer: Mapping[str, object]) -> tuple[tuple[str, ...], frozenset[int]]:
    """Return the ids of jobs that may be unknown here, and their buckets; invalid ones are skipped."""
    ids, buckets = answer.get("unsure"), answer.get("buckets")
    return (
        tuple(each for each in ids if isinstance(each, str) and JOB_ID.fullmatch(each))
        if isinstance(ids, list)
        else (),
        frozenset(each for each in buckets if isinstance(each, int)) if isinstance(buckets, list) else frozenset(),
    )


def read_folder_id(value: object) -> str:
    """Return the id of a server's folder of jobs; empty if invalid."""
    return value if isinstance(value, str) and FOLDER_ID.fullmatch(value) else ""


def read_count(value: object) -> int:
    """Return the number of processes in a server's answer; 0 if invalid."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST_COUNT else 0


def merge(known: Job, seen: Job) -> Job:
    """Return the job updated by a server's answer; a known end never changes, but a lost job may be found."""
    if known.state is JobState.LOST and not _corrects(seen, known):
        return known
    answers = [known, seen]
    if known.state is JobState.LOST and seen.state is not JobState.LOST:
        answers = [seen]  # it was found, so there is more to pull
    elif known.state.is_final and seen.state is JobState.LOST:
        answers = [known]
    complete = any(each.logs_complete for each in answers)
    pulled = any(each.artifacts_complete for each in answers)
    if known.state.is_final or _is_same_loss(known, seen):
        # A lost job is queried repeatedly: its record is written only upon a change.
        return replace(known, logs_complete=complete, artifacts_complete=pulled)
    return replace(
        seen,
        **{each.name: _merge_field(each, known, seen) for each in _KEPT},
        logs_complete=complete,
        artifacts_complete=pulled,
        stop_grace=seen.stop_grace if seen.stop_signal else known.stop_grace,
    )


def _merge_field(each: Field, known: Job, seen: Job) -> Any:  # noqa: ANN401 - of the field's type
    """Return a record's value after a server's answer, by the rule of the field."""
    before, now = getattr(known, each.name), getattr(seen, each.name)
    if each.changes == job_fields.ONCE:
        return now if before in (None, "") else before
    return before if each.changes == job_fields.NEVER or (each.changes == job_fields.LAST_KNOWN and not now) else now


def _corrects(seen: Job, loss: Job) -> bool:
    """Return whether an answer about a lost job is newer than the loss, and did not come late."""
    if seen.state is JobState.UNREACHABLE:
        return False
    return seen.state.is_final or (seen.seen_at or 0.0) >= (loss.seen_at or 0.0)


def _is_same_loss(known: Job, seen: Job) -> bool:
    loss = replace(known, reason=seen.reason, processes_left=seen.processes_left)
    is_known = loss == known and seen.folder_id in {"", known.folder_id}
    return known.state is seen.state is JobState.LOST and is_known


def must_return_to_queue(job: Job) -> bool:
    """Return whether a waiting job left its queue in a reboot or for another server, and shall not be stopped."""
    is_lost = job.state is JobState.LOST and job.reason == REBOOTED
    return not job.stop_signal and (is_lost or bool(job.moved_as))


def vanish(known: Job, processes_left: int = 0) -> Job:
    """Return a job that is missing from its folder of jobs, as lost: nothing more is expected of it."""
    remain = "1 process remains" if processes_left == 1 else f"{processes_left} processes remain"
    reason = f"{GONE}; {remain}" if processes_left else GONE
    if known.state.is_final or (known.state is JobState.LOST and known.reason == reason):
        return replace(known, logs_complete=True)
    now = time.time()
    return replace(
        known,
        state=JobState.LOST,
        reason=reason,
        ended_at=now,
        seen_at=now,
        processes_left=processes_left,
        logs_complete=True,
        stop_signal=known.stop_signal if processes_left else "",
    )


def become_cleaned(known: Job, removed: RemovedJob | None = None) -> Job:
    """Return a cleaned job: as it ended, with nothing more expected of it."""
    if not known.state.is_final and removed is not None:
        known = replace(
            known,
            state=removed.state,
            exit_code=removed.exit_code,
            signal=removed.signal,
            ended_at=removed.ended_at,
            seen_at=time.time(),
            reason=CLEANED,
            processes_left=0,
            stop_signal="",
        )
    return replace(known, cleaned=True, logs_complete=True, artifacts_complete=True)


def why_missing(job: Job) -> str:
    """Explain why the state of a missing job is unknown, when its folder of jobs may be another one."""
    return NOT_ITS_FOLDER if job.folder_id else UNKNOWN


def become_unreachable(known: Job, why: str) -> Job:
    """Return a job that its server did not know or could not read, to be recorded; a finished job stays as it is."""
    if known.state.is_finished:
        return known
    last = known.reason.partition("; ")[0] if known.state is JobState.UNREACHABLE else f"last seen {known.state}"
    return replace(known, state=JobState.UNREACHABLE, reason=f"{last}; {why}")


def seem_unreachable(known: Job, why: str) -> Job:
    """Return a job whose server did not answer, to be shown and not recorded: the next answer counts.

    Args:
        known: The job as recorded.
        why: What the error shown beside the jobs does not say; may be empty.
    """
    if known.state.is_finished or known.state is JobState.UNREACHABLE:
        return known
    age = f", {time.time() - known.seen_at:.0f} s ago" if known.seen_at else ""
    reason = f"last seen {known.state}{age}" + (f"; {why}" if why else "")
    return replace(known, state=JobState.UNREACHABLE, reason=reason)


_FINISHED = frozenset(state.value for state in JobState if state.is_finished)
_REMOTE_STATES = frozenset(state.value for state in JobState if state is not JobState.UNREACHABLE)


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise JobError(f"{name}: must be an object")
    return value


def _matching(value: object, form: re.Pattern[str], name: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise JobError(f"{name}: invalid value")
    return value


def _one_of(value: object, allowed: set[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise JobError("state: unknown state")
    return value


def from_record(each: Field, value: Any) -> Any:  # noqa: ANN401 - JSON here, of the field's type there
    """Return the attribute of a job for a record's value.

    Raises:
        ValueError: The value is invalid.
    """
    convert = CONVERTERS.get(each.name)
    return value if convert is None or value is None else convert(value)


def _read(each: Field, record: Mapping[str, object]) -> Any:  # noqa: ANN401 - of the field's type
    """Return a validated field of a server's answer, or its default if missing."""
    value = record.get(each.name)
    if value is None and not each.is_required:
        return from_record(each, each.default)
    if not each.accepts(value) or not each.fits(value):
        raise JobError(f"{each.name}: must be {each.kind.form.format(each.limit)}")
    return from_record(each, value)


def _count_processes(value: object) -> int:
    if not isinstance(value, list):
        raise JobError("processes: must be a list")
    return len(value)


def _status_values(tail: object, patterns: Mapping[str, str], *, has_ended: bool) -> tuple[str, ...]:
    """Return the progress that the end of a job's output shows; an older agent does not send it."""
    if not isinstance(tail, list) or not tail:
        return ()
    from remote_tool.jobs.status_values import last_values  # noqa: PLC0415 - its patterns take a millisecond to compile

    texts = [text[-LONGEST_TAIL:] for text in tail[:MOST_TAILS] if isinstance(text, str)]
    return last_values(texts, patterns, has_ended=has_ended)


def _sizes(value: object) -> dict[str, int]:
    sizes = _mapping(value, "sizes")
    return {_matching(name, STREAM, "stream"): _size(size) for name, size in sizes.items()}


def _size(value: object) -> int:
    if not is_count(value, 2**62):
        raise JobError("size: must be a number of bytes")
    return int(value)  # type: ignore[call-overload, no-any-return]
