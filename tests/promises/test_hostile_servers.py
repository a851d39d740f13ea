"""What a server says is believed only of what it was asked about, and only as far as it can be true."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from tests.files_over_http import serve
from tests.promises.conftest import before_each_request

if TYPE_CHECKING:
    from pathlib import Path

    from tests.promises.conftest import Desk

JOB_ID = "[0-9]\\{8\\}-[0-9]\\{6\\}-[0-9a-f]\\{32\\}"


@pytest.mark.row(106)
@pytest.mark.parametrize(
    "words", [("job-kill", "1", "--grace", "0"), ("job-run", "--no-sync", "--server", "first", "--cmd", "true")]
)
def test_a_server_changes_nothing_of_a_job_of_another_one(desk_of_two: Desk, words: tuple[str, ...]) -> None:
    desk = desk_of_two
    for server in ("first", "second"):
        desk.does("job-run", "--no-sync", "--server", server, "--cmd", "until [ -e end ]; do sleep 0.1; done")
    other = desk.waits_for(2, "running")
    desk.waits_for(1, "running")
    record = desk.root / ".remote" / "jobs" / other["id"] / "job.yaml"
    before = record.read_text()
    # It says of another server's job whatever is true of its own.
    program = before_each_request(desk, f'"$python" "$@" | LC_ALL=C sed -u "s/{JOB_ID}/{other["id"]}/g"; exit')
    assert "Traceback" not in desk.tries(*words).stderr
    assert record.read_text() == before
    program.rename(program.with_name("python"))
    desk.does("job-kill", "--all", "--yes")


@pytest.mark.row(106)
def test_a_file_that_a_server_sends_twice_over_does_not_appear(desk_of_two: Desk) -> None:
    desk = desk_of_two
    command = "head -c 3000000 /dev/urandom > model.pt"
    desk.does("job-run", "--no-sync", "--server", "first", "--artifact", "*.pt", "--cmd", command)
    desk.waits_for(1, "succeeded")
    place = desk.root / ".remote" / "jobs" / desk.job(1)["id"] / "artifacts" / "model.pt"
    repeats = '"$python" "$@" | LC_ALL=C sed -u -E \'s/("offset": ?)[1-9]([0-9]+)/\\1\\2 /\'; exit'
    before_each_request(desk, repeats)
    assert "received bytes that do not continue the local copy" in desk.refuses("job-pull", "1")
    assert not place.exists()


@pytest.mark.row(76)
def test_files_that_grow_after_they_were_listed_count_too(desk_of_two: Desk) -> None:
    desk = desk_of_two
    desk.configure(artifact_limit={"file": "1MB", "job": "1500KB"})
    requests = desk.there() / "requests"
    for suffix in ("one", "two"):
        words = ("--artifact", f"*.{suffix}", "--cmd", f"touch a.{suffix} b.{suffix} c.{suffix}")
        desk.does("job-run", "--no-sync", "--server", "first", *words)
    for key in (1, 2):
        desk.waits_for(key, "succeeded")
    before_each_request(desk, f"echo >> {requests}")
    desk.does("job-pull", "1")
    count = len(requests.read_text())
    requests.unlink()
    grow = f'for name in a b c; do head -c 1000000 /dev/zero > "{desk.there()}/$name.two"; done'
    before_each_request(desk, f"echo >> {requests}; [ $(wc -l < {requests}) -lt {count} ] || {grow}")
    said = desk.refuses("job-pull", "2")
    assert "grew during the pull, beyond artifact_limit" in said


@pytest.mark.row(114)
@pytest.mark.parametrize("depth", [40, 500_000])
def test_a_configuration_that_is_nested_too_deep_is_refused(desk: Desk, depth: int) -> None:
    (desk.root / ".remote" / "configs.yaml").write_text("[" * depth + "]" * depth)
    assert "configs.yaml:1: nested deeper than 32" in desk.refuses("rsync", status=2)


@pytest.mark.row(118)
def test_an_installer_that_changed_on_its_way_is_not_run(desk: Desk, tmp_path: Path) -> None:
    site_folder = tmp_path / "site"
    site_folder.mkdir()
    text = f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n".encode()
    (site_folder / "Mini.sh").write_bytes(text)
    with serve(site_folder) as site:
        site.changes["Mini.sh"] = lambda data: data + b"#"
        installer = {"url": f"{site.url}/Mini.sh", "sha256": hashlib.sha256(text).hexdigest()}
        desk.configure(environment={"miniconda": {"installer": installer}})
        said = " ".join(desk.refuses("prepare").split())
        assert "Mini.sh" in site.requests
    assert hashlib.sha256(text + b"#").hexdigest() in said
    assert "was not run" in said
    assert not (tmp_path / "ran").exists()
