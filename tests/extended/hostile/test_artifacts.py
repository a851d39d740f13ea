"""What a hostile server says of artifacts: nothing gets outside of their folder, and no command is held up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.jobs.job import Job, new_job_id
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.workflows import agent_client
from tests.below import files_below
from tests.extended.hostile.conftest import BOUND, SILENCE
from tests.extended.hostile.test_jobs import entry
from tests.figures import record_figure

if TYPE_CHECKING:
    from tests.extended.hostile.conftest import Desk

Pieces = list[tuple[dict[str, Any], bytes]]

STAMP = [4, 10**18, 7]
FILE = ["model.pt", *STAMP, False]

# Of a list: files that a server names, each of which is left out.
NAMES = {
    "up": "../../../../escaped",
    "up in the middle": "a/../../../../../escaped",
    "absolute": "/tmp/escaped",
    "empty": "",
    "a dot": ".",
    "a folder": "a/",
    "two slashes": "a//b",
    "a line break": "a\nb",
    "a NUL": "a\0b",
    "escapes": "\x1b]0;title\x07\x1b[2J",
    "half a character": "\ud800",
    "turned around": "\u202egnp.exe",
    "our folder": ".remote-tool/giving-way.json",
    "our folder in capitals": ".Remote-Tool/lock",
    "a name of a kilobyte": "x" * 1024,
    "a path of four": "/".join(["x" * 200] * 20),
    "a thousand folders": "/".join(["x"] * 1000),
    "a secret": "in/.env",
    "a key": "id_rsa",
    "git": ".git/hooks/pre-commit",
    "a job": ".jobs/1/spec.json",
    "a supervisor": ".remote-scripts/python",
}
# What is no list of files: one error.
LISTS: dict[str, Any] = {
    "a word": {"files": "model.pt"},
    "files that are words": {"files": ["model.pt"]},
    "a number for a name": {"files": [[5, *STAMP, False]]},
    "a size below zero": {"files": [["model.pt", -1, 0, 0, False]]},
    "a size that is true": {"files": [["model.pt", True, 0, 0, False]]},
    "a size of a hundred digits": {"files": [["model.pt", 10**100, 0, 0, False]]},
    "a time of no year": {"files": [["model.pt", 4, 10**30, 7, False]]},
    "a number for a flag": {"files": [["model.pt", *STAMP, 1]]},
    "too many files": {"files": [[f"model-{number}.pt", *STAMP, False] for number in range(10_001)]},
    "another job": {"job": new_job_id(), "files": []},
    "an end in the middle": {"done": True},
    "text for a number": {"end": True, "older": "many"},
}
# What is sent of a file of four bytes, as (header, body).
PIECES: dict[str, Pieces] = {
    "more than announced": [({"begin": STAMP, "offset": 0}, b""), ({"offset": 0}, b"12345")],
    "more behind the end": [({"begin": STAMP, "offset": 0}, b""), ({"offset": 4}, b"5")],
    "the same bytes twice": [({"begin": STAMP, "offset": 0}, b""), ({"offset": 0}, b"12"), ({"offset": 1}, b"2")],
    "an offset below zero": [({"begin": STAMP, "offset": 0}, b""), ({"offset": -1}, b"1")],
    "pieces of nothing": [({"begin": STAMP, "offset": 0}, b""), ({"offset": 0}, b"")],
    "bytes without a beginning": [({"offset": 0}, b"1234")],
    "an end without a beginning": [({"end": "whole"}, b"")],
    "two beginnings": [({"begin": STAMP, "offset": 0}, b""), ({"begin": STAMP, "offset": 0}, b"")],
    "a beginning in the middle": [({"begin": STAMP, "offset": 3}, b"")],
    "a beginning that is a word": [({"begin": "now", "offset": 0}, b"")],
    "a larger file than was listed": [({"begin": [2**45, 1, 1], "offset": 0}, b"")],
    "comparing what is not here": [({"checked": 5}, b"")],
    "another file": [({"file": 1, "begin": STAMP, "offset": 0}, b"")],
    "the end at once": [({"done": True}, b"")],
}


def tell(desk: Desk, job: Job, answers: dict[str, Pieces], *, then: str = "") -> None:
    """Have the server answer each operation with frames; status tells of the job."""
    told = {"status": [({"jobs": [entry(job.id)], "bad": []}, b"")], **answers}
    frames = {
        operation: [(json.dumps(header).encode(), body) for header, body in pieces]
        for operation, pieces in told.items()
    }
    answer = f"for header, body in {frames!r}[request['op']]:\n    write(1, frame(request, header, body))\n"
    desk.answer(f"write(1, mark)\n{answer}{then}")


def job_of(desk: Desk) -> Job:
    return desk.job(artifacts=(ArtifactPattern("**"),))


def listing(job: Job, *files: list[Any]) -> Pieces:
    end = {"job": job.id, "end": True, "older": 0, "cut": False}
    return [({"job": job.id, "files": list(files)}, b""), (end, b""), ({"done": True}, b"")]


def check(desk: Desk, job: Job, *arguments: str) -> str:
    """Pull, and look that nothing lies outside of the job's artifacts; return what was said."""
    ended = desk.program(*arguments)
    assert "Traceback" not in ended.shown, ended.shown
    assert ended.seconds < BOUND
    homes = [desk.root / ".remote" / "jobs" / each.id / "artifacts" for each in desk.jobs()]
    assert job.id in {home.parent.name for home in homes}
    others = [path for path in files_below(desk.root.parent) if not any(path.is_relative_to(home) for home in homes)]
    assert {path.name for path in others} <= {
        *("configs.yaml", "known_hosts", "known_hosts.lock", "train.py", "lock", "last_key", "job.yaml"),
        *("workspace", "job.out", "job.err"),
    }
    return ended.err


@pytest.mark.picked
@pytest.mark.row(106, 109)
def test_a_name_that_leads_elsewhere_is_left_out_and_the_others_come(desk: Desk) -> None:
    job = job_of(desk)
    files = [[name, *STAMP, False] for name in NAMES.values()]
    sent: Pieces = [
        ({"file": 0, "begin": STAMP, "offset": 0}, b""),
        ({"file": 0, "offset": 0}, b"good"),
        ({"file": 0, "end": "whole"}, b""),
        ({"done": True}, b""),
    ]
    tell(desk, job, {"artifacts": listing(job, *files, FILE), "send": sent})
    said = check(desk, job, "job-pull", "--job", job.id)
    home = desk.root / ".remote" / "jobs" / job.id / "artifacts"
    assert {path.relative_to(home).as_posix() for path in files_below(home)} == {"model.pt", ".remote-tool/lock"}
    assert (home / "model.pt").read_bytes() == b"good"
    assert f"{len(NAMES)} skipped" in said
    record_figure("answers of a hostile server tried", len(NAMES))


@pytest.mark.slow
@pytest.mark.row(106)
def test_an_invalid_listing_is_one_error(desk: Desk) -> None:
    for name, wrong in LISTS.items():
        job = job_of(desk)
        tell(desk, job, {"artifacts": [({"job": job.id, **wrong}, b""), *listing(job, FILE)]})
        said = check(desk, job, "job-pull", "--job", job.id, "--server", "bad")
        assert said.count("error:") == 1, (name, said)
        assert not list(files_below(desk.root / ".remote" / "jobs" / job.id / "artifacts"))


@pytest.mark.slow
@pytest.mark.row(106)
def test_bytes_that_are_not_of_the_file_are_one_error_and_no_file(desk: Desk) -> None:
    for name, pieces in PIECES.items():
        job = job_of(desk)
        sent = [({"file": 0, **header}, body) for header, body in [*pieces, ({"end": "whole"}, b"")]]
        tell(desk, job, {"artifacts": listing(job, FILE), "send": [*sent, ({"done": True}, b"")]})
        said = check(desk, job, "job-pull", "--job", job.id, "--server", "bad")
        assert said.count("error:") == 1, (name, said)
        assert not (desk.root / ".remote" / "jobs" / job.id / "artifacts" / "model.pt").exists(), name


@pytest.mark.row(106)
def test_endless_lists_and_silence_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "LONGEST_SILENCE", SILENCE)
    job = job_of(desk)
    endless = f"while True: write(1, frame(request, {{'job': {job.id!r}, 'files': [{FILE!r}] * 500}}))"
    tell(desk, job, {"artifacts": []}, then=f"if request['op'] == 'artifacts':\n    {endless}")
    assert "more than 10000 files" in check(desk, job, "job-pull", "--job", job.id, "--server", "bad")
    tell(
        desk,
        job,
        {"artifacts": listing(job, FILE), "send": [({"file": 0, "begin": STAMP, "offset": 0}, b"")]},
        then="if request['op'] == 'send':\n    time.sleep(60)",
    )
    assert f"said nothing for {SILENCE:.0f} s" in check(desk, job, "job-pull", "--job", job.id, "--server", "bad")


def test_a_private_key_under_another_name_does_not_stay(desk: Desk) -> None:
    job = job_of(desk)
    key = b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2g\n"
    stamp = [len(key), 10**18, 7]
    sent: Pieces = [
        ({"file": 0, "begin": stamp, "offset": 0}, b""),
        ({"file": 0, "offset": 0}, key),
        ({"file": 0, "end": "whole"}, b""),
        ({"done": True}, b""),
    ]
    tell(desk, job, {"artifacts": listing(job, ["model.pt", *stamp, False]), "send": sent})
    assert "model.pt was not pulled: it is a private key" in check(desk, job, "job-pull", "--job", job.id)
    home = desk.root / ".remote" / "jobs" / job.id / "artifacts"
    assert [path.name for path in files_below(home)] == ["lock"]
