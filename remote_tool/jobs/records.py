"""What a server says about its jobs, read strictly: every field is checked before anything is done with it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from remote_tool.errors import JobError
from remote_tool.jobs.job import Job, JobState
from remote_tool.supervisor.artifact_patterns import ArtifactPattern, PatternError, read_patterns

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{32}")
LAUNCH_ID = re.compile(r"[0-9a-zA-Z._-]{0,80}")
STREAM = re.compile(r"out|err|ranks/[0-9]{1,6}/[0-9]{1,6}/(out|err|error)")
SIGNAL = re.compile(r"SIG[A-Z0-9+-]{1,16}")
MAXIMUM_COMMAND = 4 * 1024 * 1024
MAXIMUM_TAGS = 100
# On the server's side only: the job's processes are on another machine that shares the folder.
ELSEWHERE = "elsewhere"

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteJob:
    """One job as its server describes it.

    Attributes:
        job: With key 0; the registry gives keys.
        elsewhere: Another machine that shares the folder runs it.
        ran_elsewhere: It has ended, and it seems that another machine that shares the folder ran it.
        sizes: Bytes of each output stream on the server.
    """

    job: Job
    elsewhere: bool = False
    ran_elsewhere: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


def parse_job(data: object, server: str, now: float) -> RemoteJob:
    """Check and convert one entry of the server's ``status`` answer.

    Raises:
        JobError: A field is missing, of the wrong type, too large or not of its form.
    """
    entry = _mapping(data, "job")
    spec = _mapping(entry.get("spec"), "spec")
    started = _mapping(entry.get("started") or {}, "started")
    ended = _mapping(entry.get("ended") or {}, "ended")
    state = _one_of(entry.get("state"), {*_REMOTE_STATES, ELSEWHERE})
    job_id = _matching(entry.get("id"), JOB_ID, "id")
    if spec.get("id") != job_id:
        raise JobError(f"job {job_id}: its record is of another job", server=server)
    job = Job(
        key=0,
        id=job_id,
        server=_text(spec.get("server", ""), "server", 256),
        command=_text(spec.get("command"), "command", MAXIMUM_COMMAND),
        state=JobState.RUNNING if state == ELSEWHERE else JobState(state),
        tags=_tags(spec.get("tags", [])),
        launch_id=_matching(spec.get("launch_id") or "", LAUNCH_ID, "launch_id"),
        node_rank=_optional_whole(spec.get("node_rank"), "node_rank", 100_000),
        rank_offset=_optional_whole(spec.get("rank_offset"), "rank_offset", 10_000_000),
        exit_code=_optional_whole(ended.get("exit_code"), "exit_code", 255),
        signal=_optional_signal(ended.get("signal")),
        reason=_text(entry.get("reason") or "", "reason", 4096),
        pid=_optional_whole(started.get("pid"), "pid", 2**31),
        created_at=_moment(spec.get("created_at"), "created_at") or 0.0,
        started_at=_moment(started.get("started_at"), "started_at"),
        ended_at=_moment(ended.get("ended_at"), "ended_at"),
        seen_at=now,
        stopped_with_launch=ended.get("stopped_with_launch") is True,
        lost_node=_optional_whole(ended.get("lost_node"), "lost_node", 100_000),
        taken_port=_optional_whole(ended.get("taken_port"), "taken_port", 65_535),
        artifacts=_artifacts(spec.get("artifacts")),
    )
    return RemoteJob(
        job=job,
        elsewhere=state == ELSEWHERE,
        ran_elsewhere=entry.get("ran_here") is False,
        sizes=_sizes(entry.get("sizes") or {}),
    )


def merge(known: Job, seen: Job) -> Job:
    """What is known after the server said something; the end of a finished job never changes."""
    complete = known.logs_complete or seen.logs_complete
    pulled = known.artifacts_complete or seen.artifacts_complete
    if known.state.is_finished:
        return replace(known, logs_complete=complete, artifacts_complete=pulled)
    return replace(
        seen,
        key=known.key,
        server=known.server,
        command=known.command,
        tags=known.tags,
        launch_id=known.launch_id,
        node_rank=known.node_rank,
        rank_offset=known.rank_offset,
        created_at=known.created_at,
        logs_complete=complete,
        artifacts=known.artifacts,
        artifacts_complete=pulled,
        stop_signal=seen.stop_signal or known.stop_signal,
        stop_grace=seen.stop_grace if seen.stop_signal else known.stop_grace,
    )


_REMOTE_STATES = frozenset(state.value for state in JobState if state is not JobState.UNREACHABLE)


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise JobError(f"{what}: must be an object")
    return value


def _text(value: object, what: str, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise JobError(f"{what}: must be a text of at most {longest} characters")
    return value


def _matching(value: object, form: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise JobError(f"{what}: not of its form")
    return value


def _one_of(value: object, allowed: set[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise JobError("state: not a state that we know")
    return value


def _tags(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAXIMUM_TAGS:
        raise JobError(f"tags: must be a list of at most {MAXIMUM_TAGS} texts")
    return tuple(_text(tag, "tag", 1024) for tag in value)


def _artifacts(value: object) -> tuple[ArtifactPattern, ...]:
    try:
        return read_patterns(value or [])
    except PatternError as error:
        raise JobError(f"artifacts: must be {error}") from error


def _optional_whole(value: object, what: str, largest: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise JobError(f"{what}: must be a whole number from 0 to {largest}")
    return value


def _optional_signal(value: object) -> str | None:
    return None if value is None else _matching(value, SIGNAL, "signal")


def _moment(value: object, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise JobError(f"{what}: must be seconds since the epoch")
    if not 0 <= value < 2**34:
        raise JobError(f"{what}: out of range")
    return float(value)


def _sizes(value: object) -> dict[str, int]:
    sizes = _mapping(value, "sizes")
    return {
        _matching(name, STREAM, "stream"): _optional_whole(size, "size", 2**62) or 0 for name, size in sizes.items()
    }
