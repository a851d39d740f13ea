"""What a server says, or does not say, of jobs that it was to start: failed is only what it says has not begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.jobs.job import Job, JobState
from tests.extended.hostile.test_jobs import BEGIN

if TYPE_CHECKING:
    from tests.extended.hostile.conftest import Desk

RUN = ("job-run", "--server", "bad", "--cmd", "sleep 60", "--no-sync")
# Runs on the server: what is asked for, and how a job looks that runs.
HEAD = (
    BEGIN
    + """
asked = request.get("ids") or [job["id"] for job in request.get("jobs", [])]
def entry(job_id, **changes):
    spec = {"id": job_id, "server": "bad", "command": "sleep 60", "tags": [], "created_at": 1.5e9}
    started = {"pid": 1, "started_at": 1.5e9}
    return {"id": job_id, "state": "running", "spec": spec, "started": started, "ended": None, **changes}
def answer(header):
    write(1, frame(request, header))
    os._exit(0)
"""
)
UNSURE = {
    "an error that does not say whether it has begun": 'answer({"jobs": [{"id": asked[0], "error": "no disk"}]})',
    "an error of the whole call that does not say so": 'answer({"error": "no disk"})',
    "an error of a job that has begun": 'answer({"jobs": [{"id": asked[0], "error": "no disk", "begun": True}]})',
    "an entry that cannot be read": 'answer({"jobs": [entry(asked[0], reason="x" * 5000)]})',
    "an answer without the job": 'answer({"jobs": []})',
    "an answer about another job": 'answer({"jobs": [entry("20261121-053000-" + "0" * 32)]})',
    "an answer that is too long": 'write(1, frame(request, {}, lengths="9000000 0"))',
    "no answer": "os._exit(1)",
}


def the_job(desk: Desk) -> Job:
    (job,) = desk.jobs()
    return job


@pytest.mark.slow
@pytest.mark.row(153)
@pytest.mark.parametrize("said", UNSURE.values(), ids=UNSURE)
def test_a_start_that_is_answered_unclearly_is_asked_for_by_its_id(desk: Desk, said: str) -> None:
    desk.answer(
        f'{HEAD}if request["op"] == "start":\n    {said}\nanswer({{"jobs": [entry(each) for each in asked]}})\n'
    )
    desk.check(desk.program(*RUN))
    assert the_job(desk).state is JobState.RUNNING


@pytest.mark.slow
@pytest.mark.row(153)
@pytest.mark.parametrize("said", UNSURE.values(), ids=UNSURE)
def test_a_start_of_which_nothing_is_known_is_not_called_failed(desk: Desk, said: str) -> None:
    desk.answer(f'{HEAD}if request["op"] == "start":\n    {said}\nanswer({{"jobs": []}})\n')
    ended = desk.program(*RUN)
    desk.check(ended)
    assert the_job(desk).state is JobState.STARTING
    assert ended.status != 0
    assert "remote-tool job-list" in ended.err
    desk.answer(f'{HEAD}answer({{"jobs": [entry("{the_job(desk).id}")]}})\n')
    desk.check(desk.program("job-list", "--server", "bad"))
    assert the_job(desk).state is JobState.RUNNING


@pytest.mark.row(153)
@pytest.mark.parametrize(
    "said",
    [
        'answer({"jobs": [{"id": asked[0], "error": "no disk", "begun": False}]})',
        'answer({"error": "no disk", "begun": False})',
    ],
    ids=["of the job", "of the whole call"],
)
def test_a_start_is_failed_when_the_server_says_that_it_has_not_begun(desk: Desk, said: str) -> None:
    desk.answer(HEAD + said)
    ended = desk.program(*RUN)
    desk.check(ended)
    assert (the_job(desk).state, the_job(desk).reason) == (JobState.FAILED, "not started: no disk")
    assert "no disk" in ended.err
    assert ended.status == 1


@pytest.mark.slow
@pytest.mark.row(153)
def test_a_second_try_that_finds_nothing_set_up_says_nothing_of_the_first(desk: Desk) -> None:
    """The first was begun, then the link went; then the folder of the scripts is away for a moment."""
    cut = 'if request.get("again") is False:\n    os.kill(os.getppid(), 9)\n    os._exit(0)\nos._exit(96)\n'
    desk.answer(HEAD + cut)
    ended = desk.program(*RUN)
    desk.check(ended)
    assert "was lost, so it may have been done: bad is not prepared" in " ".join(ended.err.split())
    assert the_job(desk).state is JobState.STARTING


@pytest.mark.slow
@pytest.mark.row(153)
def test_a_first_try_that_finds_nothing_set_up_has_not_begun(desk: Desk) -> None:
    desk.answer(HEAD + "os._exit(96)\n")
    ended = desk.program(*RUN)
    desk.check(ended)
    assert "bad is not prepared" in ended.err
    assert the_job(desk).state is JobState.FAILED
