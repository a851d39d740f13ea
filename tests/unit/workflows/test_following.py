"""What a follower shows, how long it asks a server again, and what a fan-out does about one that it gives up."""

from __future__ import annotations

from collections import deque

import pytest

from remote_tool.errors import ConnectError
from remote_tool.jobs.job import Job, JobState
from remote_tool.workflows.fan_out.plan import Shard, Slot
from remote_tool.workflows.fan_out.work_queue import Attempt, WorkQueue
from remote_tool.workflows.jobs import follow
from remote_tool.workflows.jobs.follow import Patience
from remote_tool.workflows.jobs.log_streams import Viewer

JOB = Job(1, "id", "first", "true", JobState.RUNNING)


def take(viewer: Viewer, offset: int, data: bytes) -> None:
    with pytest.raises(StopIteration):
        viewer.take(JOB, "out", offset, data).send(None)


@pytest.mark.row(150)
def test_bytes_that_come_twice_are_shown_once() -> None:
    shown: list[bytes] = []
    viewer = Viewer(lambda _job, _stream, data: shown.append(data), lambda _job, _stream: True)
    take(viewer, 0, b"again")
    take(viewer, 0, b"again and")
    take(viewer, 3, b"in")
    assert shown == [b"again", b" and"]


@pytest.mark.row(150)
def test_what_another_command_has_just_brought_home_is_asked_for_unless_it_was_shown() -> None:
    viewer = Viewer(lambda _job, _stream, _data: None, lambda _job, stream: stream == "out")
    take(viewer, 0, b"again")
    assert viewer.next_offset(JOB, "out", 100) == 5
    assert viewer.next_offset(JOB, "out", 2) == 2
    assert viewer.next_offset(JOB, "err", 100) == 100


@pytest.mark.row(151)
def test_a_server_that_does_not_answer_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    patience, error = Patience(600.0), ConnectError("refused")
    pauses = []
    for clock[0] in (1000.0, 1300.0, 1600.0):
        pauses.append(patience.next_pause(error))
    assert 0 < pauses[0] < pauses[2] <= follow.LONGEST_PAUSE
    clock[0] = 1601.0
    with pytest.raises(ConnectError, match="refused"):
        patience.next_pause(error)
    patience.restore()
    assert patience.next_pause(error) > 0


@pytest.mark.row(151)
def test_what_may_run_on_a_server_that_is_given_up_is_started_nowhere_else() -> None:
    running, waiting = Shard(0, 2), Shard(1, 2)
    attempt = Attempt(running, Slot("first", 0), JOB)
    queue = WorkQueue([Slot("first", 0), Slot("second", 0)], deque([waiting]), 1, {JOB.id: attempt})
    assert queue.give_up("first") == [attempt]
    assert list(queue.waiting) == [waiting]
    assert [each.shard for each in queue.take("second")] == [waiting]
    assert not queue.has_work_for("first")
