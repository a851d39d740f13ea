"""What a server says about jobs: others' jobs, states, streams and sizes that cannot be, and text that steers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.jobs.job import JobState, new_job_id
from remote_tool.jobs.registry import Registry
from tests.figures import record_figure

if TYPE_CHECKING:
    from tests.extended.hostile.conftest import Desk

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\ud800\r\nerror: forged"
PLACE = {"hostname": "h", "machine_id": "", "boot_id": "b", "pid_namespace": "p"}
BEGIN = "write(1, mark)\n"


def entry(job_id: str, **changes: object) -> dict[str, Any]:
    """One job as a server tells of it; a change of "spec.tags" is one in its spec."""
    made: dict[str, Any] = {
        "id": job_id,
        "state": "running",
        "reason": "",
        "spec": {"id": job_id, "server": "bad", "command": "python train.py", "tags": [], "created_at": 1.5e9},
        "started": {"pid": 1, "started_at": 1.5e9},
        "ended": None,
        "sizes": {"out": 1},
    }
    for name, value in changes.items():
        holder, _, field = name.rpartition("__")
        if holder and made[holder] is None:
            made[holder] = {}
        (made[holder] if holder else made)[field] = value
    return made


def frames(*headers: object) -> str:
    """Return the answer.py that sends these frames."""
    return BEGIN + "".join(f"write(1, frame(request, {json.dumps(header).encode()!r}))\n" for header in headers)


REFUSED: dict[str, dict[str, object]] = {
    "an unknown state": {"state": "dancing"},
    "unreachable is ours to say": {"state": "unreachable"},
    "a state that is a list": {"state": ["running"]},
    "another id in the record": {"spec__id": new_job_id()},
    "an id that is a path": {"id": "../../x", "spec__id": "../../x"},
    "an id with a line break": {"id": "20261121-053000-" + "0" * 32 + "\n"},
    "a pid of text": {"started__pid": "1; rm -rf /"},
    "a pid below zero": {"started__pid": -1},
    "a pid that is true": {"started__pid": True},
    "a time that is text": {"started__started_at": "now"},
    "a time of no year": {"started__started_at": 1e300},
    "an exit code of 256": {"ended__exit_code": 256},
    "an exit code that is true": {"ended__exit_code": True},
    "an exit code of a hundred digits": {"ended__exit_code": 10**100},
    "a signal that is a command": {"ended__signal": "SIGKILL; reboot"},
    "a stream that is a path": {"sizes": {"../../x": 1}},
    "a stream that is absolute": {"sizes": {"/etc/passwd": 1}},
    "a size below zero": {"sizes": {"out": -1}},
    "tags of numbers": {"spec__tags": [1]},
    "a thousand tags": {"spec__tags": ["x"] * 1000},
    "a command of bytes": {"spec__command": [112, 121]},
    "a command of five megabytes": {"spec__command": "x" * (5 << 20)},
    "no command": {"spec__command": None},
    "a launch that is a path": {"spec__launch_id": "../x"},
    "a rank below zero": {"spec__node_rank": -1},
    "a reason of ten thousand letters": {"reason": "x" * 10_000},
    "a record that is a list": {"spec": []},
    "an end that is a word": {"ended": "now"},
}


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(106, 109)
def test_a_job_that_is_not_as_it_should_be_is_refused_and_named(desk: Desk) -> None:
    for name, changes in REFUSED.items():
        good = new_job_id()
        desk.answer(frames({"jobs": [entry(new_job_id(), **changes), entry(good)]}))
        ended = desk.program("job-list", "--server", "bad")
        desk.check(ended)
        assert ended.err.count("a job record was refused") == 1, (name, ended)
        assert [job.id for job in desk.jobs()].count(good) == 1, name
        record_figure("job records of a hostile server refused", 1)
    assert len(desk.jobs()) == len(REFUSED)


@pytest.mark.row(106)
def test_very_many_bad_records_are_counted_not_listed(desk: Desk) -> None:
    desk.answer(BEGIN + "write(1, frame(request, b'{\"jobs\": [' + b'5,' * 200000 + b'5]}'))")
    ended = desk.program("job-list", "--server", "bad")
    desk.check(ended)
    assert ended.err.count("refused") <= 5
    assert "200001" in ended.err.replace(",", "")


@pytest.mark.row(110)
def test_no_text_of_a_job_steers_the_terminal_or_forges_a_line(desk: Desk) -> None:
    texts = {"spec__command": ESCAPES, "spec__tags": [ESCAPES], "spec__server": ESCAPES, "reason": ESCAPES}
    job = desk.job(command="x")
    desk.answer(
        frames({"jobs": [entry(new_job_id(), **texts), entry(job.id, state="failed", ended__exit_code=1, **texts)]})
    )
    for words in (("--stopped",), ("--stopped", "--json")):
        ended = desk.program("job-list", "--server", "bad", *words)
        desk.check(ended)
        assert ended.status == 0, ended
        assert "\nerror: forged" not in ended.shown
    desk.answer(frames({"error": ESCAPES, "job": job.id}, {"done": True}))
    ended = desk.program("job-tail", "--job", job.id)
    desk.check(ended)
    assert "\nerror: forged" not in ended.shown


STACKS: dict[str, dict[str, object]] = {
    "a job that is a list": {"job": [1]},
    "a job that is a tree": {"job": {"a": 1}},
    "a process that is a list": {"pid": [1], "parent": {}},
    "a rank that is text": {"rank": "0; reboot", "why": [1], "command": None},
    "texts full of escapes": {"rank": 1, "why": ESCAPES, "command": ESCAPES},
}
DUMPS = (
    b'Thread 0x1 (most recent call first):\n  File "a", line ' + b"9" * 5000 + b" in f",
    b'[{"thread_name": "MainThread", "frames": [{"filename": 1, "name": 2, "line": 1e999}]}]',
    b"[" * 10_000,
    f'Thread 0x1 (most recent call first):\n  File "{ESCAPES}", line 1 in {ESCAPES}'.encode(errors="replace"),
)


@pytest.mark.slow
@pytest.mark.row(106, 110)
def test_invalid_stacks_are_shown_as_unknown_or_ignored(desk: Desk) -> None:
    job = desk.job()
    running = json.dumps({"jobs": [entry(job.id)]}).encode()
    headers = [json.dumps({"job": job.id, "pid": 7, "why": "", **header}).encode() for header in STACKS.values()]
    shown = "".join(f"    write(1, frame(request, {header!r}, {dump!r}))\n" for header in headers for dump in DUMPS)
    stacks = f"{shown}    write(1, frame(request, {{'done': True}}))\n"
    desk.answer(f"{BEGIN}if request['op'] == 'stacks':\n{stacks}else:\n    write(1, frame(request, {running!r}))\n")
    for words in ((), ("--json",)):
        ended = desk.program("job-stacks", job.id, *words)
        desk.check(ended)
        assert ended.status == 0, ended
        assert "rank 1" in ended.out
        assert "\nerror: forged" not in ended.shown


@pytest.mark.slow
@pytest.mark.row(106, 214)
def test_a_forward_ignores_ports_it_did_not_ask_for(desk: Desk) -> None:
    unasked = [{"ready": True}, {"ports": [["localhost", 6006]], "others": [ESCAPES, -1]}, {"open": 2, "to": 0}]
    desk.answer(frames(*unasked, {"over": True}, {"error": "the end"}))
    ended = desk.program("forward", "0:6007", "--server", "bad")
    desk.check(ended)
    assert ended.status == 1, ended
    assert "6006" not in ended.shown
    assert "6007" in ended.out


@pytest.mark.slow
@pytest.mark.row(106, 110, 214)
def test_invalid_ports_of_a_job_are_ignored(desk: Desk) -> None:
    job = desk.job()
    ports = [["localhost", 0], ["localhost", 70000], [ESCAPES, 5], "x", None, ["h" * 64, 5], [5, 5], {"a": 1}]
    others = [True, -1, 10**30, ESCAPES, 40001]
    desk.answer(frames({"ready": True}, {"ports": ports, "others": others}, {"ports": 5, "others": {}}, {"over": True}))
    ended = desk.program("forward", "--job", job.id)
    desk.check(ended)
    assert ended.status == 1, ended
    assert "none of its ports was forwarded" in ended.err
    assert not ended.out


@pytest.mark.row(106)
@pytest.mark.parametrize("command", ["job-list", "job-kill", "job-run"])
def test_nothing_is_believed_of_jobs_of_another_server(desk: Desk, command: str) -> None:
    """It says that a job of the honest server has succeeded, or is its own."""
    foreign = desk.job(server="honest", created_at=0.0)
    desk.program("job-list", "--server", "honest")
    other = desk.job(server="elsewhere")
    mine = desk.job()
    lies = [entry(each.id, state="succeeded", ended__exit_code=0) for each in (foreign, other)]
    desk.answer(frames({"jobs": [*lies, entry(mine.id)], "now": 1}))
    words = {
        "job-list": ("--server", "bad"),
        "job-kill": ("--job", mine.id, "--grace", "1", "--yes"),
        "job-run": ("--server", "bad", "--cmd", "true", "--no-sync"),
    }[command]
    desk.check(desk.program(command, *words))
    known = {job.id: job for job in desk.jobs()}
    assert known[other.id].state is JobState.RUNNING
    assert known[foreign.id].state is JobState.UNREACHABLE
    assert (known[foreign.id].server, known[other.id].server) == ("honest", "elsewhere")


STREAMS: dict[str, tuple[dict[str, object], ...]] = {
    "a stream that goes up": ({"stream": "../../../../planted", "offset": 0},),
    "a stream that is absolute": ({"stream": "/tmp/planted-by-a-server", "offset": 0},),
    "a rank that goes up": ({"stream": "ranks/0/../../../x", "offset": 0},),
    "the record itself": ({"stream": "job.yaml", "offset": 0},),
    "a stream that is a list": ({"stream": ["out"], "offset": 0},),
    "an offset far ahead": ({"stream": "out", "offset": 1 << 40},),
    "an offset below zero": ({"stream": "out", "offset": -1},),
    "an offset of text": ({"stream": "out", "offset": "0"},),
    "a skip over everything": ({"stream": "out", "offset": 1 << 62, "skipped": 1 << 62},),
    "an unknown job": ({"job": "20261121-053000-" + "0" * 32, "stream": "out", "offset": 0},),
    "a job that is a path": ({"job": "../../x", "stream": "out", "offset": 0},),
    "a status of another job": ({"status": entry(new_job_id(), state="succeeded", ended__exit_code=0)},),
    "a status that is a word": ({"status": "succeeded"},),
    "five thousand streams": tuple({"stream": f"ranks/0/{rank}/out", "offset": 0} for rank in range(5000)),
}


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(106, 109)
def test_output_comes_to_its_place_or_not_at_all(desk: Desk) -> None:
    for name, headers in STREAMS.items():
        job = desk.job()
        sent = [{"job": job.id, **header} for header in headers]
        status = json.dumps({"jobs": [entry(job.id)]}).encode()
        desk.answer(
            f"{BEGIN}if request['op'] == 'status': write(1, frame(request, {status!r})); os._exit(0)\n"
            f"write(1, b''.join(frame(request, json.dumps(each).encode(), b'x') for each in {sent!r}))\n"
        )
        ended = desk.program("job-tail", "--job", job.id)
        desk.check(ended)
        assert ended.status != 0, (name, ended)
        assert ended.err.count("error: ") == 1, (name, ended)
        assert _state(desk, job.id) is JobState.RUNNING, name
        record_figure("frames of output refused", 1)


@pytest.mark.row(109)
@pytest.mark.parametrize("link", ["", "job.out", "ranks", "ranks/0", "ranks/0/0", "ranks/0/0/out", "job.yaml"])
def test_no_link_that_came_with_the_project_is_followed(desk: Desk, link: str) -> None:
    """Each folder on the way may be one; where it leads, the folders are there."""
    job = desk.job()
    folder = desk.root / ".remote" / "jobs" / job.id
    target = desk.server.home.parent / f"target-{new_job_id()}"
    (target / "ranks" / "0" / "0" / "0" / "0").mkdir(parents=True)
    place = folder / link
    place.parent.mkdir(parents=True, exist_ok=True)
    (target / "job.yaml").write_bytes((folder / "job.yaml").read_bytes())
    if place.exists():
        place.rename(target / "moved")
    leads_to = {"": target, "ranks": target / "ranks", "ranks/0": target / "ranks" / "0"}.get(link, target / "file")
    if link == "ranks/0/0":
        leads_to = target / "ranks" / "0" / "0"
    if link == "job.yaml":
        leads_to = target / "job.yaml"
    place.symlink_to(leads_to)
    before = _content(target)
    for stream in ("out", "ranks/0/0/out"):
        desk.answer(
            f"{BEGIN}if request['op'] == 'status': write(1, frame(request, {{'jobs': []}}))\n"
            f"else: write(1, frame(request, {{'job': {job.id!r}, 'stream': {stream!r}, 'offset': 0}}, b'planted'))\n"
        )
        desk.program("job-tail", "--job", job.id)
        desk.program("job-list", "--rsync", "--server", "bad")
    assert _content(target) == before


@pytest.mark.row(123)
def test_a_pipe_or_device_among_the_records_holds_nobody(desk: Desk) -> None:
    good, pipe, endless = desk.job(), desk.job(), desk.job()
    folder = desk.root / ".remote" / "jobs"
    for job, make in ((pipe, os.mkfifo), (endless, lambda path: path.symlink_to("/dev/zero"))):
        (folder / job.id / "job.yaml").unlink()
        make(folder / job.id / "job.yaml")
    jobs, bad = Registry(folder).load()
    assert [job.id for job in jobs] == [good.id]
    assert len(bad) == 2


def _content(folder: Any) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _state(desk: Desk, job_id: str) -> JobState:
    return next(job.state for job in desk.jobs() if job.id == job_id)
