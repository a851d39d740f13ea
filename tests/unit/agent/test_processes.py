"""A process is more than its pid."""

from __future__ import annotations

import os

import pytest

from remote_tool.agent.proc.processes import ProcessSnapshot, find_alive, read_process, send_signal


@pytest.mark.row(4)
def test_a_process_with_the_pid_of_a_record_and_another_start_time_is_another_one() -> None:
    this = read_process(os.getpid())
    assert this is not None
    other = this._replace(start_time=this.start_time - 1)
    assert [find_alive(each.as_record()) is None for each in (this, other)] == [False, True]
    # Number 0 asks only whether a process may be signalled.
    assert [send_signal(each, 0) for each in (this, other)] == [True, False]


@pytest.mark.row(4)
def test_a_process_that_has_got_the_pid_of_a_command_does_not_belong_to_its_job() -> None:
    snapshot = ProcessSnapshot()
    this = snapshot.processes[os.getpid()]

    def belongs(command: dict[str, int]) -> bool:
        return this in snapshot.members("a-job", "", command=command)

    assert belongs(this.as_record())
    assert not belongs({**this.as_record(), "start_time": this.start_time - 1})
