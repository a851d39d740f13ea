"""What Slurm says about batch jobs, and what that means for the jobs that they start; pure functions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

BY = "slurm"
REQUEUED = "requeued by Slurm"
# By which the clocks of a node and of the controller may differ.
CLOCK_SECONDS = 5.0
# For squeue; the reason is last, as it may have any character.
FORMAT = "%i|%T|%S|%N|%k|%r"
_FIELDS = 6
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_UNREMARKABLE = {"RUNNING", "CONFIGURING", "COMPLETING"}
_KILLED = {"CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "REVOKED"}
_ENDS = {
    "CANCELLED": "Slurm canceled it",
    "TIMEOUT": "Slurm ended it at its time limit",
    "PREEMPTED": "Slurm preempted it",
    "DEADLINE": "Slurm ended it at its deadline",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "BOOT_FAIL": "its node could not boot",
}
# Of other states, some of which only newer versions have, more may come.
_OVER = {*_ENDS, "COMPLETED", "FAILED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"}
NEVER_SATISFIED = "DependencyNeverSatisfied"
_REASONS = {
    "Priority": "others are before it",
    "Resources": "no nodes are free",
    "Dependency": "an earlier job has not ended",
    NEVER_SATISFIED: "an earlier job has not succeeded, so it never starts",
    "BeginTime": "its time to begin has not come",
    "JobHeldUser": "it is held",
    "JobHeldAdmin": "an administrator holds it",
    "JobArrayTaskLimit": "as many of its array run as may",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionConfig": "no node of its partition is as it asks, so it may never start",
    "PartitionTimeLimit": "its time limit is longer than the partition allows, so it never starts",
    "PartitionNodeLimit": "its partition has too few nodes",
    "ReqNodeNotAvail": "nodes that it needs are not available",
    "Licenses": "no license is free",
}
# In the record of a supervisor that Slurm ended; see remote_tool.agent.supervisor.end.
BY_SIGNAL = "by a signal to its supervisor"


@dataclass(frozen=True)
class BatchJob:
    """A batch job, or a task of an array.

    Attributes:
        reference: Its id: ``12``, or ``12_3``.
        state: As Slurm names it, such as PENDING.
        start: When it began or is expected to begin, in seconds since the epoch; None if unknown.
        nodes: Its nodes; empty while it waits.
        reason: Why it waits, as Slurm says it; empty without one.
        comment: The first of its jobs, and their launch.
    """

    reference: str
    state: str
    start: float | None = None
    nodes: str = ""
    reason: str = ""
    comment: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun, or waits to begin again."""
        return self.state in _WAITING

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or will run."""
        return self.state in _OVER

    @property
    def was_killed(self) -> bool:
        """Whether somebody ended it, rather than itself or a fault."""
        return self.state in _KILLED

    def describe(self, *, with_start: bool = True) -> str:
        """Return where it runs, or what it waits for, with the moment when it is expected to start."""
        name = f"Slurm job {self.reference}"
        if not self.is_waiting:
            where = f"{name} on {self.nodes}" if self.nodes else name
            return where if self.state in _UNREMARKABLE else f"{where}, {self.state.lower()}"
        known = _REASONS.get(self.reason)
        why = f": {known} ({self.reason})" if known else f": {self.reason}" if self.reason else ""
        if self.start is None or not with_start:
            return f"{name}{why}"
        return f"{name}{why}; expected to start {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.start))}"

    def describe_end(self) -> str:
        """Return how it ended, where its job has no record of that."""
        if self.reason == NEVER_SATISFIED:
            return _REASONS[NEVER_SATISFIED]
        how = _ENDS.get(self.state, "it ended without a record")
        return f"{how} (Slurm job {self.reference}: {self.state})"


def parse_queue(text: str) -> dict[str, BatchJob]:
    """Return batch jobs by id from the output of squeue; lines of another form are left out."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|", _FIELDS - 1)
        if len(fields) == _FIELDS:
            reference, state, start, nodes, comment, reason = (_value(field) for field in fields)
            moment = float(start) if start.isdecimal() else None
            found[reference] = BatchJob(reference, state, moment, nodes, reason, comment)
    return found


def _value(field: str) -> str:
    text = field.strip()
    return "" if text in {"N/A", "(null)", "None"} else text


def parse_accounting(text: str) -> dict[str, BatchJob]:
    """Return batch jobs by id from the output of sacct: id and state, such as ``CANCELLED by 1000``."""
    found = {}
    for line in text.splitlines():
        reference, _, state = line.strip().partition("|")
        if reference and state:
            found[reference] = BatchJob(reference, state.split()[0])
    return found


@dataclass(frozen=True)
class Verdict:
    """What is to be recorded on the server about a job.

    Attributes:
        reason: What it waits for, or how it ended.
        end: ``killed`` or ``failed``; empty: it waits.
        again: When its last attempt ended, or began if it left no end, if Slurm begins it again.
    """

    reason: str
    end: str = ""
    again: float | None = None

    def as_request(self, job_id: str) -> dict[str, Any]:
        """Return the job for op ``settle``."""
        told = {"id": job_id, "reason": self.reason, **({self.end: True} if self.end else {})}
        return told if self.again is None else {**told, "again": self.again, "why": REQUEUED}


def judge(entry: Mapping[str, Any], batch: BatchJob) -> tuple[dict[str, Any], Verdict | None]:
    """Return the answer about a job with what Slurm says, and what is to be recorded on the server.

    Args:
        entry: The agent's answer about a job that Slurm starts.
        batch: Its batch job.
    """
    seen = {**entry, "ran_here": True}
    if entry.get("ended"):
        return _judge_ended(seen, batch)
    if batch.is_waiting:
        waits = {**seen, "started": None, "state": "queued", "reason": batch.describe()}
        note = batch.describe(with_start=False)
        if entry.get("started"):
            return waits, Verdict(note, again=entry["started"].get("started_at"))
        return waits, None if entry["held"].get("reason") == note else Verdict(note)
    if not batch.is_over:
        state = "running" if entry.get("started") else "starting"
        return {**seen, "state": state, "reason": batch.describe()}, None
    return seen, Verdict(batch.describe_end(), "killed" if batch.was_killed else "failed")


def is_ended_from_outside(entry: Mapping[str, Any]) -> bool:
    """Return whether Slurm told a job to end, so that it may begin it again, whatever the job's record says."""
    held = entry.get("held")
    return BY_SIGNAL in str(entry.get("reason")) or (isinstance(held, dict) and held.get("ending") is True)


def _judge_ended(seen: dict[str, Any], batch: BatchJob) -> tuple[dict[str, Any], Verdict | None]:
    """Return the answer about a job with a record of its end, which does not count if Slurm begins it again."""
    ended_at = seen["ended"].get("ended_at")
    if batch.is_waiting:
        waits = {**seen, "ended": None, "started": None, "state": "queued", "reason": batch.describe()}
        return waits, Verdict(batch.describe(with_start=False), again=ended_at)
    is_number = isinstance(ended_at, (int, float))
    if is_number and batch.start is not None and not batch.is_over and ended_at < batch.start - CLOCK_SECONDS:
        # It is that of an attempt before this one.
        return {**seen, "ended": None, "started": None, "state": "starting", "reason": batch.describe()}, None
    if is_ended_from_outside(seen) and not batch.is_over:
        return {**seen, "ended": None, "state": "running", "reason": f"{batch.describe()}; it is ending"}, None
    if (is_ended_from_outside(seen) and batch.state in _ENDS) or (
        batch.state == "OUT_OF_MEMORY" and seen["state"] == "failed"
    ):
        # The command may have ended before its supervisor knew why.
        state = "killed" if batch.was_killed and seen["state"] == "failed" else seen["state"]
        return {**seen, "state": state, "reason": batch.describe_end()}, None
    return seen, None
