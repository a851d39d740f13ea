"""Which files a job has written, and their bytes, as the control program tells them."""

from __future__ import annotations

import hashlib
import os
import resource
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.agent.artifacts import send
from remote_tool.protocol import artifact_search
from remote_tool.protocol.artifact_search import ArtifactSearch
from tests.extended.agent.conftest import PretendServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# At the end of a list.
NOTHING_SHARED = {"end": True, "cut": False, "shared": 0, "example": ""}


def listed(server: PretendServer, job_id: str, patterns: list[Any] | None = None) -> list[str]:
    """Return the names that are told of a job."""
    return listing(server, job_id, patterns)[0]


def listing(server: PretendServer, job_id: str, patterns: list[Any] | None = None) -> tuple[list[str], dict[str, Any]]:
    """Return the names that are told of a job, and what is told at the end."""
    with server.open("artifacts", jobs=[{"id": job_id, "patterns": patterns}]) as call:
        frames = [frame.header for frame in call.rest()]
    assert frames[-1] == {"done": True}
    assert frames[-2]["end"] is True, frames
    end = {name: value for name, value in frames[-2].items() if name not in {"job", "older"}}
    return [file[0] for frame in frames[:-2] for file in frame["files"]], end


def make_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("a.pt", ["a.pt"]),
        ("*.pt", ["a.pt"]),
        ("*/*.pt", ["in/b.pt"]),
        ("**/*.pt", ["a.pt", "in/b.pt", "in/deep/c.pt"]),
        ("in/**", ["in/b.pt", "in/deep/c.pt"]),
        ("**", ["a.pt", "in/b.pt", "in/deep/c.pt"]),
        ("**/**/c.pt", ["in/deep/c.pt"]),
        ("**/deep/*", ["in/deep/c.pt"]),
        ("in/", ["in/.hidden", "in/b.pt", "in/deep/c.pt"]),
        ("i?/", ["in/.hidden", "in/b.pt", "in/deep/c.pt"]),
        ("[ab].p[st]", ["a.pt"]),
        (".*", [".dot"]),
        ("*", ["a.pt"]),
        ("in", []),
        ("a.pt/", []),
        ("missing/*", []),
    ],
)
def test_a_glob_finds_what_it_names(root: int, tmp_path: Path, glob: str, found: list[str]) -> None:
    make_files(tmp_path, "a.pt", ".dot", "in/b.pt", "in/.hidden", "in/deep/c.pt", ".git/x.pt", ".jobs/1/y.pt")
    assert sorted({each.path for each in ArtifactSearch(root).find(glob)}) == found


def test_no_link_is_followed_and_what_is_no_file_is_passed_over(root: int, tmp_path: Path) -> None:
    make_files(tmp_path, "in/a.pt")
    (tmp_path / "folder").symlink_to(tmp_path / "in")
    (tmp_path / "link.pt").symlink_to(tmp_path / "in" / "a.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    for glob in ("**/*.pt", "folder/*", "folder/", "link.pt", "pipe.pt"):
        assert {each.path for each in ArtifactSearch(root).find(glob)} <= {"in/a.pt"}, glob


def test_an_error_that_may_pass_is_not_taken_for_an_empty_folder(root: int, tmp_path: Path) -> None:
    """Descriptors that have run out stand for a network disk that fails for a moment."""
    make_files(tmp_path, "in/a.pt")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(root)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limit[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            list(ArtifactSearch(root).find("in/*"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_a_search_is_bounded_in_entries_and_depth(root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path, *(f"{number}.pt" for number in range(20)), "/".join(["x"] * 80 + ["deep.txt"]))
    search = ArtifactSearch(root)
    assert len(list(search.find("**/*.pt"))) == 20
    assert search.is_cut
    monkeypatch.setattr(artifact_search, "MOST_ENTRIES", 10)
    search = ArtifactSearch(root)
    assert len(list(search.find("*"))) < 20
    assert search.is_cut


def test_files_from_before_a_job_or_after_its_end_are_not_listed(server: PretendServer) -> None:
    make_files(server.project, "before.pt")
    job_id = server.start("echo x > during.pt; touch -d 2001-01-01 during.pt; cp -p before.pt copied.pt")
    server.wait(job_id)
    wait_until(lambda: _is_later(server, job_id), "the clock")
    make_files(server.project, "after.pt")
    assert listed(server, job_id, [["*.pt", None]]) == ["copied.pt", "during.pt"]


def _is_later(server: PretendServer, job_id: str) -> bool:
    probe = server.project / "probe"
    probe.write_text("")
    return probe.stat().st_mtime_ns > (server.jobs / job_id / "ended.json").stat().st_mtime_ns


@pytest.mark.row(145)
def test_of_two_jobs_one_after_another_each_has_its_own(server: PretendServer) -> None:
    jobs = []
    for name in ("a.pt", "b.pt"):
        jobs.append(server.start(f"echo x > {name}", artifacts=[["*.pt", 1]]))
        server.wait(jobs[-1])
        wait_until(partial(_is_later, server, jobs[-1]), "the clock")
    assert [listing(server, job) for job in jobs] == [([name], NOTHING_SHARED) for name in ("a.pt", "b.pt")]


@pytest.mark.row(145)
@pytest.mark.parametrize("glob", ["out/*/*.pt", "out/$REMOTE_TOOL_JOB_ID/*.pt", "out/${REMOTE_TOOL_JOB_ID}/*.pt"])
def test_of_two_jobs_at_once_each_has_what_its_id_is_in_the_path_of(server: PretendServer, glob: str) -> None:
    """Under one pattern of which only the newest are wanted."""
    jobs = [start_together(server, name, "out/$REMOTE_TOOL_JOB_ID", [[glob, 2]]) for name in "ab"]
    end_together(server, jobs, rounds=3)
    for job, name in zip(jobs, "ab", strict=True):
        assert listing(server, job) == ([f"out/{job}/{name}{number}.pt" for number in (1, 2)], NOTHING_SHARED)


@pytest.mark.row(145)
def test_files_that_two_concurrent_jobs_may_have_written_are_listed_for_both_and_counted(server: PretendServer) -> None:
    """Nobody knows who wrote it; a third job that ran then wants other files."""
    jobs = [start_together(server, name, "out", [["out/*.pt", None]]) for name in "ab"]
    jobs.append(start_together(server, "c", "other", [["other/*", None]]))
    end_together(server, jobs, rounds=1)
    for job in jobs[:2]:
        names, end = listing(server, job)
        assert names == ["out/a0.pt", "out/b0.pt"]
        assert (end["shared"], end["example"]) == (2, "out/a0.pt")
    assert listing(server, jobs[2]) == (["other/c0.pt"], NOTHING_SHARED)


@pytest.mark.row(145)
def test_a_job_that_goes_on_in_the_folder_of_one_that_ended_has_what_it_writes_there(server: PretendServer) -> None:
    first = server.start("mkdir -p out/$REMOTE_TOOL_JOB_ID; cd out/$REMOTE_TOOL_JOB_ID; echo x > 1.pt")
    server.wait(first)
    wait_until(lambda: _is_later(server, first), "the clock")
    second = server.start(f"echo x > out/{first}/2.pt")
    server.wait(second)
    patterns: list[Any] = [["out/*/*.pt", None]]
    assert [listed(server, job, patterns) for job in (first, second)] == [
        [f"out/{first}/1.pt"],
        [f"out/{first}/2.pt"],
    ]


def start_together(server: PretendServer, name: str, folder: str, patterns: list[Any]) -> str:
    """Start a job that writes a file into a folder in each round."""
    rounds = f"for n in 0 1 2; do until test -e go$n; do sleep 0.01; done; echo x > {folder}/{name}$n.pt; done"
    return server.start(f"mkdir -p {folder}; {rounds}", artifacts=patterns)


def _has_files(server: PretendServer, pattern: str, count: int) -> bool:
    return len(list(server.project.rglob(pattern))) == count


def end_together(server: PretendServer, jobs: list[str], rounds: int) -> None:
    """Let jobs write in turn, so that each finds files of the others newer and older than its own."""
    for number in range(rounds):
        (server.project / f"go{number}").touch()
        wait_until(partial(_has_files, server, f"*{number}.pt", len(jobs)), "the files")
    if rounds < 3:
        for job in jobs:
            server.stop(job)
    server.wait(*jobs)


def test_sent_files_are_listed_only_when_the_job_changed_them(server: PretendServer) -> None:
    records = (b"2 1700000000 in/train config.json", b"5 1 b.json", b"-1 -1 c.json", b"2 1700000000 d.json")
    (server.scripts / "sent").write_bytes(b"".join(record + b"\0" for record in records))
    touch = "touch -d @1700000000.7 'in/train config.json' d.json; echo y >> d.json; touch -d @1700000000 d.json"
    write = "mkdir in; for each in 'in/train config' b c d e; do echo x > \"$each.json\"; done"
    job_id = server.start(f"{write}; {touch}")
    server.wait(job_id)
    assert listed(server, job_id, [["**/*.json", None]]) == ["b.json", "c.json", "d.json", "e.json"]


def test_the_jobs_own_patterns_are_in_its_record(server: PretendServer) -> None:
    job_id = server.start("touch a.pt b.pt c.txt", artifacts=[["*.pt", 1]])
    server.wait(job_id)
    assert listed(server, job_id) == ["b.pt"]
    assert listed(server, server.start("touch d.pt")) == []


def test_our_folders_are_not_searched_under_any_name(server: PretendServer) -> None:
    server.jobs = server.project / "my-jobs"
    scripts = server.project / "my-scripts"
    server.scripts.rename(scripts)
    (server.project / ".remote-scripts").mkdir()
    server.folder_names = {"jobs_folder": "my-jobs", "scripts_folder": "my-scripts"}
    job_id = server.start("mkdir in; touch my-scripts/x .remote-scripts/x in/y")
    server.wait(job_id)
    assert listed(server, job_id, [["**", None], [".*/*", None], ["my-scripts/", None]]) == ["in/y"]


@pytest.mark.parametrize("patterns", ["x", [["../x", None]], [["a", 0]], [[1, 2]]])
def test_invalid_patterns_are_an_error_of_their_job(server: PretendServer, patterns: Any) -> None:
    job_id = server.start("true")
    server.wait(job_id)
    with server.open("artifacts", jobs=[{"id": job_id, "patterns": patterns}, {"id": "../x"}, 5]) as call:
        frames = [frame.header for frame in call.rest()]
    assert all("error" in frame and frame["gone"] for frame in frames[:3])
    assert frames[3:] == [{"done": True}]


def fetched(server: PretendServer, **asked: Any) -> tuple[int, bytes, str]:
    """Fetch a file: where it began, its bytes from there on with the holes, and how it ended."""
    with server.open("send", files=[asked]) as call:
        *frames, done = call.rest()
    assert done.header == {"done": True}
    begin, data, offset = 0, bytearray(), 0
    for frame in frames:
        if "begin" in frame.header:
            begin = offset = frame.header["offset"]
        elif frame.body:
            data += bytes(frame.header["offset"] - offset) + frame.body
            offset = frame.header["offset"] + len(frame.body)
            assert len(frame.body) <= send.CHUNK
    return begin, bytes(data), frames[-1].header["end"]


def stamp_of(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def test_a_file_comes_from_where_it_is_lacking_only_when_the_beginning_is_the_same(server: PretendServer) -> None:
    path = server.project / "a.pt"
    data = os.urandom(2_000_000)
    path.write_bytes(data)
    half = {"have": 10**6, "sha256": hashlib.sha256(data[: 10**6]).hexdigest()}
    stamp = stamp_of(path)
    assert fetched(server, path="a.pt") == (0, data, "whole")
    assert fetched(server, path="a.pt", stamp=stamp, **half) == (10**6, data[10**6 :], "whole")
    assert fetched(server, path="a.pt", stamp=[*stamp[:2], 1], **half) == (0, data, "whole")
    assert fetched(server, path="a.pt", stamp=stamp, have=10**6, sha256="0" * 64) == (0, data, "whole")
    assert fetched(server, path="a.pt", stamp=stamp, have=3 * 10**6, sha256="0" * 64) == (0, data, "whole")
    assert fetched(server, path="a.pt", most=10**6) == (0, b"", "grew")


def test_a_file_that_cannot_be_sent_is_reported_and_the_next_is_sent(server: PretendServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    make_files(server.project, "in/a.pt")
    (server.project / "link").symlink_to(tmp_path / "secret")
    (server.project / "folder").symlink_to(server.project / "in")
    os.mkfifo(server.project / "pipe")
    asked: list[Any] = [
        {"path": name} for name in ("link", "folder/a.pt", "in", "pipe", "../x", "/etc/passwd", 5, "x\0")
    ]
    with server.open("send", files=[*asked, "x", {"path": "in/a.pt"}]) as call:
        frames = call.rest()
    ends = [frame.header["end"] for frame in frames if "end" in frame.header]
    assert "whole" not in ends[:-1]
    assert ends[-1] == "whole"
    assert [frame.body for frame in frames if frame.body] == [b"x"]
