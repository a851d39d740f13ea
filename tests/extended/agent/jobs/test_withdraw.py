"""Jobs that wait are given up in favor of another server: one that has begun never is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.extended.agent.conftest import wait_until

if TYPE_CHECKING:
    from tests.extended.agent.conftest import PretendServer

ROUNDS = 12


def wanted(number: int = 1) -> dict[str, Any]:
    return {"moved_to": f"server-{number}", "moved_as": f"20261121-053000-{number:032x}", "moved_copy": "0" * 16}


def waiting(server: PretendServer, command: str, **fields: Any) -> tuple[str, str]:
    """Start a job that runs until ``go`` appears, and one that waits for it."""
    first = server.start("until [ -e go ]; do sleep 0.01; done; rm go")
    second = server.new_job(command, after=[first], after_any=True, **fields)
    server.call("start", jobs=[second])
    job_id = str(second["id"])
    wait_until(lambda: server.status(job_id)["state"] == "queued", "it waits")
    return first, job_id


@pytest.mark.picked
@pytest.mark.row(277)
def test_a_job_that_waits_ends_and_its_record_says_what_takes_its_place(server: PretendServer) -> None:
    on_end = {"command": "touch on-end", "secrets": {}}
    _, job_id = waiting(server, "touch ran", on_end=on_end)
    assert server.call("withdraw", id=job_id, **wanted())["moved_as"] == wanted()["moved_as"]
    # The first request counts.
    assert server.call("withdraw", id=job_id, **wanted(2))["moved_as"] == wanted()["moved_as"]
    status = server.status(job_id)
    assert (status["state"], status["started"]) == ("killed", None)
    assert {name: status["ended"][name] for name in wanted()} == wanted()
    assert status["reason"] == f"moved to server-1, as job {wanted()['moved_as']}"
    (server.project / "go").touch()
    server.wait(job_id)
    assert not (server.project / "ran").exists()
    # It has not ended for its user.
    assert not (server.project / "on-end").exists()


@pytest.mark.picked
@pytest.mark.row(277)
def test_a_job_that_has_begun_stays(server: PretendServer) -> None:
    job_id = server.start("until [ -e go ]; do sleep 0.01; done")
    assert server.call("withdraw", id=job_id, **wanted())["moved_as"] == ""
    (server.project / "go").touch()
    ended = server.wait(job_id)[job_id]
    assert (ended["exit_code"], ended.get("moved_as")) == (0, None)
    assert server.call("withdraw", id=job_id, **wanted())["moved_as"] == ""


@pytest.mark.parametrize("change", [{"moved_as": "../x"}, {"moved_to": None}, {"id": ".."}])
def test_a_malformed_request_changes_nothing(server: PretendServer, change: dict[str, Any]) -> None:
    first, job_id = waiting(server, "touch ran")
    request: dict[str, Any] = {"id": job_id, **wanted(), **change}
    assert "cannot be" in server.call("withdraw", **request)["error"]
    assert server.status(job_id)["state"] == "queued"
    assert server.stop(first)["state"] == "killed"
    server.wait(job_id)
    assert (server.project / "ran").exists()


@pytest.mark.slow
@pytest.mark.row(277)
def test_a_job_that_is_withdrawn_as_its_turn_comes_runs_or_is_moved_never_both(server: PretendServer) -> None:
    for number in range(ROUNDS):
        _, job_id = waiting(server, f"touch ran-{number}")
        with server.open("withdraw", id=job_id, **wanted()) as call:
            (server.project / "go").touch()
            (answer,) = [frame.header for frame in call.rest()]
        ended = server.wait(job_id)[job_id]
        has_run = (server.project / f"ran-{number}").exists()
        assert has_run == (ended["exit_code"] == 0) == (not ended.get("moved_as"))
        # What it was not asked to give up in time it may have given up since: the record says which.
        assert not (answer["moved_as"] and has_run)
