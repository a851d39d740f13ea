"""What Slurm says about batch jobs, and what that means for the jobs that they start."""

from __future__ import annotations

import time
from typing import Any

import pytest

from remote_tool.workflows.slurm.look import Queue, judge_all
from remote_tool.workflows.slurm.states import BatchJob, judge, parse_accounting, parse_queue

STARTED = {"started_at": 100.0}
EPOCH = time.localtime(0)


def entry(state: str, **fields: object) -> dict[str, Any]:
    """Return the agent's answer about a job that Slurm starts."""
    held = {"by": "slurm", "reference": "12", "reason": "Slurm job 12"}
    return {"id": "a", "state": state, "reason": "", "held": held, "started": None, "ended": None, **fields}


def ended(state: str, reason: str = "", **held: object) -> dict[str, Any]:
    """Return the answer about a job with a record of its end."""
    known = entry(state, started=STARTED, ended={"ended_at": 200.0}, reason=reason)
    return {**known, "held": {**known["held"], **held}}


def test_the_answer_of_squeue_is_read_and_other_lines_are_left_out() -> None:
    lines = ["12|RUNNING|1795874700|n[1-2]|a b|None", "13_4|PENDING|N/A||b|(null)"]
    found = parse_queue("\n".join([*lines, "slurm_load_jobs: slow", "14|X|a|b|c|d|e", ""]))
    assert found["12"] == BatchJob("12", "RUNNING", 1795874700.0, "n[1-2]", comment="a b")
    assert found["13_4"] == BatchJob("13_4", "PENDING", comment="b")
    assert found["14"].reason == "d|e"
    assert parse_accounting("15|CANCELLED by 1000\n\n")["15"].state == "CANCELLED"


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (BatchJob("12", "PENDING", reason="Priority"), "Slurm job 12: others are before it (Priority)"),
        (BatchJob("12", "PENDING", reason="QOSMaxJobs"), "Slurm job 12: QOSMaxJobs"),
        (BatchJob("12", "PENDING", 0.0), f"Slurm job 12; expected to start {time.strftime('%Y-%m-%d %H:%M', EPOCH)}"),
        (BatchJob("12", "SUSPENDED", nodes="n1"), "Slurm job 12 on n1, suspended"),
        (BatchJob("12", "RUNNING", nodes="n1"), "Slurm job 12 on n1"),
    ],
)
def test_a_batch_job_is_described_in_words(batch: BatchJob, expected: str) -> None:
    assert batch.describe() == expected


@pytest.mark.parametrize(
    ("known", "batch", "state", "verdict"),
    [
        (entry("queued"), BatchJob("12", "PENDING"), "queued", None),
        (entry("queued"), BatchJob("12", "PENDING", reason="Priority"), "queued", {}),
        (entry("queued"), BatchJob("12", "RUNNING"), "starting", None),
        (entry("elsewhere", started=STARTED), BatchJob("12", "RUNNING"), "running", None),
        (entry("elsewhere", started=STARTED), BatchJob("12", "COMPLETING"), "running", None),
        (entry("elsewhere", started=STARTED), BatchJob("12", "PENDING"), "queued", {"again": 100.0}),
        (entry("elsewhere", started=STARTED), BatchJob("12", "TIMEOUT"), "elsewhere", {"killed": True}),
        (entry("elsewhere", started=STARTED), BatchJob("12", "NODE_FAIL"), "elsewhere", {"failed": True}),
        (entry("queued"), BatchJob("12", "CANCELLED"), "queued", {"killed": True}),
        (ended("succeeded"), BatchJob("12", "COMPLETED"), "succeeded", None),
        (ended("succeeded"), BatchJob("12", "PENDING"), "queued", {"again": 200.0}),
        ({**ended("failed"), "started": None}, BatchJob("12", "PENDING"), "queued", {"again": 200.0}),
        (ended("failed"), BatchJob("12", "RUNNING", 300.0), "starting", None),
        (ended("failed"), BatchJob("12", "RUNNING", 150.0), "failed", None),
        (ended("killed", "stopped by a signal to its supervisor"), BatchJob("12", "COMPLETING"), "running", None),
        (ended("failed", ending=True), BatchJob("12", "COMPLETING"), "running", None),
        (ended("failed", ending=True), BatchJob("12", "TIMEOUT"), "killed", None),
        (ended("failed"), BatchJob("12", "COMPLETING"), "failed", None),
    ],
)
def test_the_state_of_a_job_is_slurms_until_its_own_record_says_that_it_has_ended(
    known: dict[str, Any], batch: BatchJob, state: str, verdict: dict[str, object] | None
) -> None:
    judged, recorded = judge(known, batch)
    assert judged["state"] == state
    assert (judged["ended"] is None) == (state in {"queued", "starting", "running", "elsewhere"})
    if verdict is None:
        assert recorded is None
    else:
        assert recorded is not None
        assert verdict.items() <= recorded.as_request("a").items()


def test_a_state_of_a_newer_slurm_ends_nothing() -> None:
    assert not BatchJob("12", "EXPEDITING").is_over
    assert BatchJob("12", "NODE_FAIL").is_over


def test_an_end_of_its_own_keeps_its_reason_though_slurm_told_it_to_end() -> None:
    judged, verdict = judge(ended("succeeded", "stopped by a signal to its supervisor"), BatchJob("12", "COMPLETED"))
    assert (judged["reason"], verdict) == ("stopped by a signal to its supervisor", None)


def test_an_end_that_slurm_made_has_its_reason() -> None:
    judged, _ = judge(ended("killed", "stopped by a signal to its supervisor"), BatchJob("12", "TIMEOUT"))
    assert judged["reason"] == "Slurm ended it at its time limit (Slurm job 12: TIMEOUT)"
    judged, _ = judge(ended("failed", "exit"), BatchJob("12", "OUT_OF_MEMORY"))
    assert "ran out of memory" in judged["reason"]
    dependent = BatchJob("12", "CANCELLED", reason="DependencyNeverSatisfied")
    assert dependent.describe_end() == "an earlier job has not succeeded, so it never starts"


def test_a_job_that_slurm_does_not_know_has_ended_and_one_that_is_being_submitted_has_not() -> None:
    known = {**entry("elsewhere", started=STARTED), "id": "gone"}
    held = {"by": "slurm", "reference": "", "reason": ""}
    submitted = {**entry("queued"), "id": "new", "held": held, "spec": {"received_at": 9e9}}
    abandoned = {**entry("queued"), "id": "old", "held": held, "spec": {"received_at": 1.0}}
    of_launch = {**abandoned, "id": "node", "spec": {"received_at": 1.0, "launch_id": "launch"}}
    queue = Queue({"13": BatchJob("13", "PENDING", comment="first launch")}, now=1e9)
    judged, verdicts = judge_all([known, submitted, abandoned, of_launch], queue)
    assert set(judged) == {"gone", "new", "old", "node"}
    assert {job: verdict.end for job, verdict in verdicts.items()} == {"gone": "failed", "old": "failed"}
    assert judge_all([abandoned], Queue({}))[1] == {}
    _, verdicts = judge_all([entry("queued")], Queue({}))
    assert verdicts["a"].end == "killed"
