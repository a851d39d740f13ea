"""Which rank of a launch failed first, where, and what it said."""

from __future__ import annotations

import json
import re
import signal as signals
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_tool.jobs.job import JobState
from remote_tool.jobs.logs import LogFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job

# torchrun's summary stands at the end of its stderr; a rank's traceback at the end of the rank's.
TAIL = 64 * 1024
LONGEST_LINE = 300
LONGEST_ERROR_FILE = 4 * 1024 * 1024
_ERROR_STREAM = re.compile(r"ranks/([0-9]+)/([0-9]+)/error")
_SUMMARY = re.compile(
    r"host\s+: (?P<host>\S+)\s+rank\s+: (?P<rank>[0-9]{1,7}) \(local_rank: (?P<local>[0-9]{1,6})\)"
    r"\s+exitcode\s+: (?P<code>-?[0-9]{1,10})"
)
# What a rank says whose peer is gone: a consequence, not the cause.
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket|nccl|process group|DistBackendError|SignalException",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RankFailure:
    """The rank that failed first.

    Attributes:
        server: Where it ran.
        rank: Its global rank; None when the launch failed before there were ranks.
        host: The name that the machine gives itself.
        exit_code: Of its process; None when a signal ended it or it is not known.
        signal: Name of the signal that ended it, like SIGSEGV; empty without one.
        message: Its last line of error.
        traceback: What it printed when it failed.
    """

    server: str
    rank: int | None
    host: str = ""
    exit_code: int | None = None
    signal: str = ""
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class _Candidate:
    failure: RankFailure
    moment: float

    @property
    def order(self) -> tuple[bool, float]:
        return bool(_CONSEQUENCE.search(self.failure.message)), self.moment


def first_failure(jobs: Sequence[Job], registry_folder: Path) -> RankFailure | None:
    """Find the first cause in what came home of a launch; None when no job failed."""
    failed = [job for job in jobs if job.state in {JobState.FAILED, JobState.LOST}]
    lost = next((job for job in failed if job.lost_node is not None), None)
    if lost is not None:
        server = next((job.server for job in jobs if job.node_rank == lost.lost_node), f"node {lost.lost_node}")
        return RankFailure(server=server, rank=None, message=lost.reason)
    candidates = [candidate for job in failed for candidate in _candidates(job, LogFolder(registry_folder / job.id))]
    if candidates:
        return min(candidates, key=lambda candidate: candidate.order).failure
    if not failed:
        return None
    job = min(failed, key=lambda each: (each.stopped_with_launch, each.ended_at or 0.0))
    text = _tail(LogFolder(registry_folder / job.id), "err")
    return RankFailure(
        server=job.server,
        rank=None,
        exit_code=job.exit_code,
        signal=job.signal or "",
        message=job.reason or _last_line(text),
        traceback=_last_traceback(text),
    )


def _candidates(job: Job, logs: LogFolder) -> Iterable[_Candidate]:
    # torchrun lists what it stopped itself too; the first cause stands last, under a heading of its own.
    root_cause = _tail(logs, "err").rpartition("Root Cause (first observed failure)")[2]
    summaries = {int(found["local"]): found for found in _SUMMARY.finditer(root_cause)}
    locals_with_files = {}
    for stream in logs.sizes():
        found = _ERROR_STREAM.fullmatch(stream)
        if found:
            locals_with_files[int(found[2])] = stream
    for local in summaries.keys() | locals_with_files.keys():
        yield _candidate(job, logs, local, summaries.get(local), locals_with_files.get(local))


def _candidate(job: Job, logs: LogFolder, local: int, summary: re.Match[str] | None, stream: str | None) -> _Candidate:
    message, trace, moment = _error_file(logs, stream) if stream else ("", "", None)
    trace = trace or _last_traceback(_rank_tail(logs, local))
    code = int(summary["code"]) if summary else None
    killed_by = _signal_name(-code) if code is not None and code < 0 else ""
    failure = RankFailure(
        server=job.server,
        rank=_global_rank(job, local, summary),
        host=summary["host"] if summary else "",
        exit_code=None if killed_by else code,
        signal=killed_by,
        message=message or (f"ended by {killed_by}" if killed_by else _last_line(trace)),
        traceback=trace,
    )
    return _Candidate(failure, moment if moment is not None else job.ended_at or 0.0)


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _global_rank(job: Job, local: int, summary: re.Match[str] | None) -> int:
    if summary:
        return int(summary["rank"])
    return (job.rank_offset or 0) + local


def _error_file(logs: LogFolder, stream: str) -> tuple[str, str, float | None]:
    """Read what torch's record decorator wrote: message, traceback, seconds since the epoch."""
    if logs.sizes().get(stream, 0) > LONGEST_ERROR_FILE:
        return "", "", None
    text = b"".join(logs.read(stream, 0))
    try:
        message: Any = json.loads(text)["message"]
        if not isinstance(message, dict):
            return str(message), "", None
        extra = message["extraInfo"]
        return str(message["message"]), str(extra["py_callstack"]), float(extra["timestamp"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "", "", None


def _rank_tail(logs: LogFolder, local: int) -> str:
    attempts = [stream for stream in logs.sizes() if re.fullmatch(rf"ranks/[0-9]+/{local}/err", stream)]
    if not attempts:
        return ""
    return _tail(logs, max(attempts, key=lambda stream: int(stream.split("/")[1])))


def _tail(logs: LogFolder, stream: str) -> str:
    start = max(0, logs.sizes().get(stream, 0) - TAIL)
    return b"".join(logs.read(stream, start)).decode(errors="replace")


def _last_traceback(text: str) -> str:
    start = text.rfind("Traceback (most recent call last)")
    if start < 0:
        return "\n".join(line[:LONGEST_LINE] for line in text.rstrip().splitlines()[-10:])
    lines = text[start:].splitlines()
    end = next(
        (index for index, line in enumerate(lines[1:], 1) if line and not line.startswith((" ", "\t"))), len(lines)
    )
    return "\n".join(lines[: end + 1])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
