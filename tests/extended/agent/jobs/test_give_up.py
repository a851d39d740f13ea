"""Starts that are given up: of a start and its giving up, exactly one succeeds, whichever comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.extended.agent.conftest import PretendServer

ROUNDS = 12
REASON = "its start never reached the server"


@pytest.mark.row(134)
def test_a_start_that_comes_after_it_was_given_up_says_so_and_runs_nothing(server: PretendServer) -> None:
    job = server.new_job("touch ran", tags=["mine"])
    assert server.call("give_up", jobs=[job])["given_up"] == [job["id"]]
    # Whoever asks again changes nothing.
    assert server.call("give_up", jobs=[job])["given_up"] == []
    for again in (False, True):
        (entry,) = server.call("start", jobs=[job], again=again)["jobs"]
        assert (entry["state"], entry["reason"], entry["already"]) == ("failed", REASON, True)
    status = server.status(job["id"])
    assert (status["state"], status["spec"]["tags"]) == ("failed", ["mine"])
    assert not (server.project / "ran").exists()


@pytest.mark.row(134)
def test_a_job_that_is_there_is_not_given_up(server: PretendServer) -> None:
    job = server.new_job("exec sleep 600")
    server.call("start", jobs=[job])
    assert server.call("give_up", jobs=[job])["given_up"] == []
    assert server.status(job["id"])["state"] == "running"
    assert server.stop(job["id"])["state"] == "killed"
    server.call("clean", ids=[job["id"]], dry_run=False, older=None, everything=False)
    assert server.call("give_up", jobs=[job])["given_up"] == []
    assert not (server.jobs / job["id"]).exists()


@pytest.mark.row(134)
@pytest.mark.slow
def test_of_a_start_and_its_giving_up_at_once_exactly_one_succeeds(server: PretendServer) -> None:
    for number in range(ROUNDS):
        job = server.new_job(f"touch ran-{number}")
        with server.open("start", jobs=[job]) as start, server.open("give_up", jobs=[job]) as end:
            (started,) = [frame.header for frame in start.rest()]
            (ended,) = [frame.header for frame in end.rest()]
        has_started = "error" not in started["jobs"][0] and not started["jobs"][0]["already"]
        assert has_started == (ended["given_up"] == [])
        assert server.wait(job["id"])[job["id"]]["exit_code"] == (0 if has_started else None)
        assert (server.project / f"ran-{number}").exists() == has_started
