"""A job that follows another one of the same request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extended.agent.conftest import wait_until

if TYPE_CHECKING:
    from tests.extended.agent.conftest import PretendServer


@pytest.mark.picked
@pytest.mark.row(310)
def test_a_job_may_be_queued_before_the_one_that_it_follows_is_there(server: PretendServer) -> None:
    first = server.new_job("echo first >> order")
    second = server.new_job("echo second >> order", after=[first["id"]], after_any=True)
    for job, state in ((second, "queued"), (first, None)):
        with server.open("start", jobs=[job]) as call:
            (frame,) = call.rest()
        (answer,) = frame.header["jobs"]
        assert "error" not in answer, answer
        assert state is None or answer["state"] == state
    wait_until(lambda: server.status(second["id"])["state"] == "succeeded", "the end of the second job")
    assert (server.project / "order").read_text() == "first\nsecond\n"
