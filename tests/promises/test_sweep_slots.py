"""A sweep on a server without GPUs: --per-server is never exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk


@pytest.mark.row(310)
def test_killing_a_job_that_waits_starts_no_other_beside_those_that_run(desk: Desk, tmp_path: Path) -> None:
    at = tmp_path / "at"
    at.mkdir()
    count = f"touch {at}/{{n}}; ls {at} | wc -l; until [ -e {tmp_path}/go ]; do sleep 0.05; done; rm {at}/{{n}}"
    desk.does("helper-sweep", "--cmd", count, "--grid", "n=1..6", "--per-server", "2")

    def by_state(state: str) -> list[str]:
        return [str(job["key"]) for job in desk.jobs("--state", state)]

    until(lambda: (len(by_state("running")), len(by_state("queued"))) == (2, 4), "two run and four wait")
    reasons = {job["reason"] for job in desk.jobs("--state", "queued")}
    killed = by_state("queued")[:2]
    desk.does("job-kill", *killed, "--yes")
    assert (len(by_state("running")), len(by_state("queued"))) == (2, 2)
    assert reasons == {"waits for the end of another job of its sweep, of which 2 run at once"}
    (tmp_path / "go").touch()
    rest = {"1", "2", "3", "4", "5", "6"} - {*killed}
    until(lambda: {*by_state("succeeded")} == rest, "the end of the others")
    for key in rest:
        assert int(desk.does("job-tail", key, "--no-follow").split()[-1]) <= 2
