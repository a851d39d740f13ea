"""The copy that a job gets is of the files that its command has sent, however many syncs come later."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool.protocol.limits import NEW_COPY
from tests.extended.agent.cleaning.test_clean import clean, ended
from tests.extended.agent.frozen.test_copies import copies_of, copy_of, send

if TYPE_CHECKING:
    from tests.extended.agent.conftest import PretendServer

DAY = 86400.0


@pytest.fixture
def synced(server: PretendServer) -> PretendServer:
    """A server with a project as the sync ``one`` has sent it."""
    sync(server, "one")
    return server


def sync(server: PretendServer, name: str) -> None:
    """Send files as a sync with this id does."""
    send(server, {"train.sh": f"echo {name}"})
    (server.scripts / "sync").write_text(f"complete {name}\n")
    (server.scripts / "sync-owner").write_text("1700000000 ann@desk\n")


def refusal(server: PretendServer, state: str) -> str:
    answer = server.call("start", jobs=[server.new_job("true", copy=NEW_COPY, snapshot=state)])
    assert answer["begun"] is False
    return str(answer["error"])


@pytest.mark.row(291)
def test_a_job_whose_files_another_sync_has_changed_is_refused_by_name(synced: PretendServer) -> None:
    sync(synced, "two")
    why = f"Another sync by ann@desk has changed {synced.project} since yours, so the job would run other code"
    assert refusal(synced, "one") == why
    job_id = ended(synced, "sh train.sh", copy=NEW_COPY, snapshot="two")
    assert synced.output(job_id) == "two\n"
    (synced.scripts / "sync").write_text("incomplete three mark\n")
    assert refusal(synced, "one") == why


@pytest.mark.row(291)
def test_a_copy_that_was_asked_for_before_a_wait_is_used_after_it(synced: PretendServer) -> None:
    name = synced.call("freeze", snapshot="one")["copy"]
    assert synced.call("freeze", snapshot="one")["copy"] == name
    sync(synced, "two")
    assert synced.call("freeze", snapshot="two")["copy"] != name
    clean(synced)
    assert len(copies_of(synced)) == 2
    first = ended(synced, "sh train.sh", copy=NEW_COPY, snapshot="one")
    second = ended(synced, "sh train.sh", copy=NEW_COPY, snapshot="one")
    assert [synced.output(job_id) for job_id in (first, second)] == ["one\n", "one\n"]
    assert copy_of(synced, first).parent.name == name
    clean(synced, first, second)
    assert name not in {path.name for path in copies_of(synced)}


@pytest.mark.row(291)
def test_a_copy_that_nobody_came_back_for_goes_after_a_week(synced: PretendServer) -> None:
    synced.call("freeze", snapshot="one")
    (wanted,) = synced.scripts.glob("copies/*/wanted")
    os.utime(wanted, (time.time() - 6 * DAY,) * 2)
    clean(synced)
    assert len(copies_of(synced)) == 1
    os.utime(wanted, (time.time() - 8 * DAY,) * 2)
    clean(synced)
    assert copies_of(synced) == []
