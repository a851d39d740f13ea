"""A job in a copy has a recorded end, whatever happens to the way home of its output."""

from __future__ import annotations

import fcntl
import shutil
import time
from typing import TYPE_CHECKING

from remote_tool.agent.frozen import copies, guests, home
from remote_tool.agent.requests import Folders
from remote_tool.protocol.limits import NEW_COPY
from tests.extended.agent.cleaning.test_clean import clean, ended
from tests.extended.agent.conftest import wait_until
from tests.extended.agent.frozen.test_copies import copy_of, run, send

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extended.agent.conftest import PretendServer


def test_a_damaged_list_of_a_copy_costs_neither_the_end_of_its_job_nor_the_output(server: PretendServer) -> None:
    send(server, {"train.sh": "echo old", "src/part.txt": "old\n"})
    job_id = ended(server, "printf 100 >../files; mkdir out; echo A >out/model.pt; exit 3", copy=NEW_COPY)
    assert server.record(job_id, "ended")["exit_code"] == 3
    assert (server.project / "out" / "model.pt").read_text() == "A\n"
    assert run(server, "cat out/model.pt src/part.txt") == "A\nold\n"
    clean(server, job_id)
    assert (server.project / "out" / "model.pt").read_text() == "A\n"


def test_folders_too_deep_for_the_way_home_stay_in_the_copy_and_the_job_has_an_end(server: PretendServer) -> None:
    send(server, {"train.sh": "echo old", "src/part.txt": "old\n"})
    deep = "d/" * 400
    command = f"mkdir -p src/{deep} {str(server.project)!r}/src/{deep}; echo A >src/{deep}x; exit 3"
    job_id = ended(server, command, copy=NEW_COPY)
    record = server.record(job_id, "ended")
    assert record["exit_code"] == 3
    assert "too many folders inside each other" in record["reason"]
    output = copy_of(server, job_id) / "src" / deep / "x"
    clean(server, job_id)
    assert output.read_text() == "A\n"


def test_output_waits_for_the_next_request_while_other_output_is_brought_home_for_long(
    server: PretendServer,
) -> None:
    send(server, {"train.sh": "echo old"})
    ended(server, "true", copy=NEW_COPY)
    folders = Folders(str(server.project), str(server.jobs), str(server.scripts))
    with (server.scripts / "home-lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy = copies.copies_in(folders)[0]
        (server.project / copy.code / "model.pt").write_text("A\n")
        guests.enter(copy.path, "0" * 16, list)
        before = time.monotonic()
        home.bring_pending(folders)
        assert not (server.project / "model.pt").exists()
        assert time.monotonic() - before < 30
    home.bring_pending(folders)
    assert (server.project / "model.pt").read_text() == "A\n"


def test_a_job_that_an_older_version_started_in_a_copy_is_known_to_a_new_one(
    server: PretendServer, tmp_path: Path
) -> None:
    send(server, {"train.sh": "echo old"})
    go = tmp_path / "go"
    slow = server.start(f"mkdir out; while [ ! -e {go} ]; do sleep 0.01; done; echo A >out/a.pt", copy=NEW_COPY)
    code = copy_of(server, slow)
    wait_until((code / "out").exists, "the folder of the older job")
    shutil.rmtree(code.parent / "guests")  # an older version has none
    ended(server, "echo B >b.pt", copy=NEW_COPY)
    # Nothing moves while the older job runs.
    assert not (code / "out").is_symlink()
    assert (server.project / "b.pt").read_text() == "B\n"
    go.touch()
    server.wait(slow)
    assert (server.project / "out" / "a.pt").read_text() == "A\n"
    assert not (server.project / "b.pt").is_symlink()
