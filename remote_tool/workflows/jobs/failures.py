"""Find the rank of a launch that failed first, and its error."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_tool.jobs.job import JobState
from remote_tool.jobs.logs import LogFolder
from remote_tool.protocol.rank_errors import (
    TAIL,
    describe_rank,
    is_consequence,
    last_lines,
    read_summary,
    read_traceback,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.protocol.rank_errors import RankEnd, Traceback

# Begins the lines of the supervisor in the output of a job.
_NOTE = "remote-tool: "
_COLOR = re.compile(r"\x1b\[[0-9;:]{0,40}m")
LONGEST_ERROR_FILE = 4 * 1024 * 1024
_WANTS_LOCAL_RANK = re.compile(r"error: the following arguments are required: .*?--(local[_-]rank)\b")
_ERROR_STREAM = re.compile(r"ranks/([0-9]+)/([0-9]+)/error")
_RANK_STREAM = re.compile(r"ranks/([0-9]+)/([0-9]+)/err")


@dataclass(frozen=True)
class RankFailure:
    """The rank that failed first.

    Attributes:
        server: Its server.
        rank: Its global rank; None if the launch failed before there were ranks.
        host: The hostname of its machine.
        exit_code: The exit code of its process; None if a signal ended it, or it is unknown.
        signal: The signal that ended it, like SIGSEGV; empty without one.
        message: The last line of its error.
        traceback: The traceback, or the last lines of its output.
    """

    server: str
    rank: int | None
    host: str = ""
    exit_code: int | None = None
    signal: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def hint(self) -> str:
        """The fix, if one is known; else empty."""
        if found := _WANTS_LOCAL_RANK.search(f"{self.message}\n{self.traceback}"):
            return (
                "torchrun passes the local rank in LOCAL_RANK, not as an argument; in the script: "
                f'parser.add_argument("--{found[1]}", type=int, default=int(os.environ["LOCAL_RANK"]))'
            )
        return ""


@dataclass(frozen=True)
class _Candidate:
    failure: RankFailure
    moment: float
    is_first: bool

    @property
    def order(self) -> tuple[bool, bool, float]:
        return is_consequence(self.failure.message), not self.is_first, self.moment


def first_failure(jobs: Sequence[Job], registry_folder: Path) -> RankFailure | None:
    """Find the first failure of a launch in its local logs; None if no job has failed."""
    failed = [job for job in jobs if job.state in {JobState.FAILED, JobState.LOST}]
    lost = next((job for job in failed if job.lost_node is not None), None)
    if lost is not None:
        node = next((job for job in jobs if job.node_rank == lost.lost_node), None)
        if node is None:
            return RankFailure(server=f"node {lost.lost_node}", rank=None, message=lost.reason)
        is_known = node.state is JobState.LOST and node.reason
        return RankFailure(server=node.server, rank=None, message=node.reason if is_known else lost.reason)
    if not failed:
        return None
    # A rank prints its error before the job of its node ends, so that job may still run.
    suspects = [job for job in jobs if job.state is JobState.FAILED or not job.state.is_final]
    candidates = [candidate for job in suspects for candidate in _candidates(job, LogFolder(registry_folder / job.id))]
    if candidates:
        return min(candidates, key=lambda candidate: candidate.order).failure
    job = min(failed, key=lambda each: (each.stopped_with_launch, each.ended_at or 0.0))
    text, reason = _without_notes(_tail(LogFolder(registry_folder / job.id), "err"), job.reason)
    return RankFailure(
        server=job.server,
        rank=None,
        exit_code=job.exit_code,
        signal=job.signal or "",
        message=reason or _last_line(text) or job.reason,
        traceback=trace.text if (trace := read_traceback(text)) else last_lines(text),
    )


def _candidates(job: Job, logs: LogFolder) -> Iterable[_Candidate]:
    summary = read_summary(_tail(logs, "err"))
    files = {int(found[2]): stream for stream in logs.sizes() if (found := _ERROR_STREAM.fullmatch(stream))}
    printed = {local: _tail(logs, stream) for local, stream in _last_attempt(logs).items()}
    tracebacks = {local: read_traceback(text) for local, text in printed.items()}
    # Torch marks uncaught exceptions, which count even if torchrun was stopped before it could report them.
    marked = {local for local, trace in tracebacks.items() if trace is not None and trace.rank is not None}
    for local in summary.keys() | files.keys() | marked:
        end, trace = summary.get(local), tracebacks.get(local)
        yield _candidate(job, logs, _Evidence(local, end, trace, files.get(local), printed.get(local, "")))


@dataclass(frozen=True)
class _Evidence:
    local_rank: int
    end: RankEnd | None
    traceback: Traceback | None
    error_stream: str | None
    printed: str


def _candidate(job: Job, logs: LogFolder, evidence: _Evidence) -> _Candidate:
    end, trace, stream, printed = evidence.end, evidence.traceback, evidence.error_stream, evidence.printed
    message, text, moment = _error_file(logs, stream) if stream else ("", "", None)
    killed_by = end.signal if end else ""
    failure = RankFailure(
        server=job.server,
        rank=_global_rank(job, evidence),
        host=end.host if end else "",
        exit_code=end.exit_code if end and not killed_by else None,
        signal=killed_by,
        message=message.split("\n")[0] or describe_rank(end, trace, printed) or _last_line(printed),
        # A rank ended by a signal may have printed the traceback of an exception that it caught.
        traceback=text or (trace.text if trace and (trace.rank is not None or not killed_by) else last_lines(printed)),
    )
    is_first = end is not None and end.is_first
    return _Candidate(failure, _end_of(job) if moment is None else moment, is_first)


def _end_of(job: Job) -> float:
    """Return the time at which the job of a node ended, in seconds since the epoch; infinity if it has not ended."""
    return job.ended_at or (0.0 if job.state.is_finished else math.inf)


def _global_rank(job: Job, evidence: _Evidence) -> int:
    if evidence.end is not None:
        return evidence.end.rank
    if evidence.traceback is not None and evidence.traceback.rank is not None:
        return evidence.traceback.rank
    return (job.rank_offset or 0) + evidence.local_rank


def _error_file(logs: LogFolder, stream: str) -> tuple[str, str, float | None]:
    """Parse the error file of torch's record decorator; return message, traceback, and seconds since the epoch."""
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


def _last_attempt(logs: LogFolder) -> dict[int, str]:
    """Return the stderr stream of the last attempt of torchrun, by local rank."""
    attempts: dict[int, int] = {}
    for stream in logs.sizes():
        if found := _RANK_STREAM.fullmatch(stream):
            attempts[int(found[2])] = max(int(found[1]), attempts.get(int(found[2]), 0))
    return {local: f"ranks/{attempt}/{local}/err" for local, attempt in attempts.items()}


def _tail(logs: LogFolder, stream: str) -> str:
    start = max(0, logs.sizes().get(stream, 0) - TAIL)
    return _COLOR.sub("", b"".join(logs.read(stream, start)).decode(errors="replace"))


def _without_notes(text: str, reason: str) -> tuple[str, str]:
    """Return an output and a reason without the lines that the supervisor has added to both."""
    lines = text.rstrip().splitlines()
    while lines and lines[-1].startswith(_NOTE) and (note := lines[-1].removeprefix(_NOTE)) in reason:
        lines.pop()
        reason = reason.replace(note, "").strip("; ")
    return "\n".join(lines), reason


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
