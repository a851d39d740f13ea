"""When the nodes of a launch take each other for lost, and how long the first one stays."""

from __future__ import annotations

import errno
import time

import pytest

from remote_tool.agent.launch.cause import Cause, read_membership
from remote_tool.agent.launch.first_node import FirstNodeWatch, _OtherNode
from remote_tool.agent.launch.heartbeat import FAREWELL_SECONDS, RECONNECT_SECONDS, is_lost
from remote_tool.agent.launch.wire import Unreachable, _closed


@pytest.mark.row(88, 158)
@pytest.mark.parametrize(
    ("silent", "gone", "lost"),
    [
        (RECONNECT_SECONDS + 2, None, False),
        (59.0, None, False),
        (61.0, None, True),
        (RECONNECT_SECONDS - 1, RECONNECT_SECONDS - 1, False),
        (RECONNECT_SECONDS + 1, RECONNECT_SECONDS + 1, True),
    ],
)
def test_silence_is_borne_for_lost_after_and_a_closed_connection_shortly(
    silent: float, gone: float | None, *, lost: bool
) -> None:
    now = 1000.0
    assert is_lost(now, now - silent, None if gone is None else now - gone, 60.0) is lost


@pytest.mark.row(158)
@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN])
def test_a_connection_that_timed_out_is_not_one_that_the_other_side_closed(number: int) -> None:
    assert isinstance(_closed(OSError(number, "away")), Unreachable)
    assert not isinstance(_closed(OSError(errno.ECONNRESET, "closed")), Unreachable)


@pytest.mark.row(158)
@pytest.mark.parametrize(("silent", "stays"), [(20.0, True), (61.0, False)])
def test_the_first_node_stays_for_one_that_may_come_back_to_hear_why_all_ends(silent: float, *, stays: bool) -> None:
    now = time.monotonic()
    away = _OtherNode()
    away.has_joined, away.last_message_at = True, now - silent
    # Without its listener.
    first = object.__new__(FirstNodeWatch)
    place = {"servers": ["first", "second"], "address": "x", "port": 1, "secret": "s" * 32, "lost_after": 60}
    first._membership = read_membership(place, 0, 1)
    first._nodes, first.verdict = {1: away}, Cause(0, "failed", "ended with exit code 3")
    first._left, first._left_at, first._decided_at = True, now - FAREWELL_SECONDS - 1, now - FAREWELL_SECONDS - 1
    assert first._is_over() is not stays
