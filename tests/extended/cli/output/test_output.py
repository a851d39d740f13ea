"""What servers send, shown: exact in a pipe, harmless on a terminal, never torn."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from remote_tool.cli.commands.clean import print_items
from remote_tool.cli.following import show_end, show_until_end
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import Console, show_error, show_failures
from remote_tool.cli.output.log_lines import LONGEST_LINE, ExactOutput, LabelledOutput
from remote_tool.cli.output.sanitize import escape_controls, harmless_line, harmless_stream, one_line
from remote_tool.cli.tables.jobs import print_jobs
from remote_tool.errors import ConfigError, ConnectError, SomeServersFailedError, SyncError
from remote_tool.jobs.job import Job, JobState
from remote_tool.workflows.clean.request import CleanItem
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepOutput, StepProgress, StepStarted
from remote_tool.workflows.jobs.failures import RankFailure
from remote_tool.workflows.jobs.follow import Chunk, FollowAnswer, OnChunk
from remote_tool.workflows.selection import JobSelection
from tests.terminal import Terminal

REPOSITORY = Path(__file__).parents[4]
HOSTILE = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "clear": "\x1b[2J\x1b[H",
    "cursor": "\x1b[1A",
    "eight-bit": "\x9b2J",
    "reordered": "a\u202eb",
    "isolated": "a\u2066b",
    "backspace": "good\b\b\b\bevil",
    "delete": "\x7f",
    "bell": "\x07",
    "return": "good\revil",
    "charset": "\x0e\x1b(0",
    "half": "\udc9b",
}
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
PASSING = re.compile(r"\x1b\[[0-9;:]{0,40}m")


@pytest.mark.row(110)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_steers_a_terminal_is_written_out(text: str) -> None:
    assert CONTROLS.search(escape_controls(text)) is None
    assert CONTROLS.search(one_line(text)) is None
    assert CONTROLS.search(PASSING.sub("", harmless_line(text))) is None


def test_written_out_characters_can_be_read() -> None:
    assert escape_controls("a\x1b]0;t\x07\u202e\udcff\tb\nc") == "a\\x1b]0;t\\x07\\u202e\\udcff\tb\nc"
    assert one_line("a\tb\nc") == "a b c"


@given(st.lists(st.text(st.sampled_from("\x1b[]0;mKJ\r\n\x07a\x9b"), max_size=12)))
def test_no_cutting_of_the_stream_lets_an_escape_through(pieces: list[str]) -> None:
    shown, waiting = "", ""
    for piece in pieces:
        more, waiting = harmless_stream(waiting + piece)
        shown += more
    shown += harmless_line(waiting)
    rest = re.sub(r"\x1b\[[0-9;:]{0,40}m|\x1b\[[0-2]?K|\r", "", shown)
    assert CONTROLS.search(rest) is None


def test_a_colour_that_is_cut_in_two_stays_a_colour() -> None:
    first, waiting = harmless_stream("red \x1b[3")
    assert (first, waiting) == ("red ", "\x1b[3")
    assert harmless_stream(waiting + "1mtext\x1b[K") == ("\x1b[31mtext\x1b[K", "")


def test_a_coloured_line_does_not_colour_the_next_one() -> None:
    assert harmless_line("\x1b[31mred") == "\x1b[31mred\x1b[0m"
    assert harmless_line("\x1b[2Kgpu2 | forged") == "gpu2 | forged"


@pytest.mark.row(27)
def test_one_source_is_passed_on_byte_by_byte_in_a_pipe(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    payload = bytes(range(256)) * 3
    output = ExactOutput()
    output.write("", 1, payload[:100])
    output.write("", 1, payload[100:])
    output.write("", 2, b"\xffno end")
    output.close()
    assert tuple(capfdbinary.readouterr()) == (payload, b"\xffno end")


@pytest.mark.row(101)
def test_lines_of_several_sources_are_never_torn(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output = LabelledOutput()
    output.write("gpu1:0", 1, b"epoch ")
    output.write("gpu1:10", 1, b"epoch 1\nloss")
    output.write("gpu1:0", 1, b"2\n\nlast")
    output.write("gpu1:0", 2, b"warning\n")
    output.close()
    out, err = capfdbinary.readouterr()
    assert out == b"gpu1:10 | epoch 1\ngpu1:0  | epoch 2\ngpu1:0  | \ngpu1:0  | last\ngpu1:10 | loss\n"
    assert err == b"gpu1:0  | warning\n"


def test_of_a_progress_bar_the_last_state_is_shown_when_several_speak(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    output = LabelledOutput()
    for percent in range(100):
        output.write("a", 2, b"\r%d%%" % percent)
    output.write("a", 2, b"\r100%\r\n")
    assert capfdbinary.readouterr().err == b"a | 100%\n"


@pytest.mark.row(128)
def test_a_line_without_end_fills_no_memory(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output = LabelledOutput()
    for _ in range(64):
        output.write("a", 1, b"x" * LONGEST_LINE)
        assert sum(map(len, output._pending.values())) <= LONGEST_LINE
    for _ in range(1000):
        output.write("b", 1, b"\r" + b"bar" * 1000)
        assert len(output._pending["b", 1, ""]) <= LONGEST_LINE + 3001
    output.close()
    lines = capfdbinary.readouterr().out.splitlines()
    assert lines == [b"a | " + b"x" * LONGEST_LINE] * 64 + [b"b | " + b"bar" * 1000]


def test_every_label_has_a_colour_of_its_own_on_a_terminal_and_none_with_no_color(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(streams, "is_terminal", lambda _descriptor: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    output = LabelledOutput()
    output.write("a", 1, b"1\n")
    output.write("b", 1, b"2\n")
    assert capfdbinary.readouterr().out == b"\x1b[36ma |\x1b[0m 1\n\x1b[33mb |\x1b[0m 2\n"
    monkeypatch.setenv("NO_COLOR", "1")
    output.write("a", 1, b"3\n")
    assert capfdbinary.readouterr().out == b"a | 3\n"


JOB = Job(
    key=12,
    id="20261121-053000-00112233445566778899aabbccddeeff",
    server="gpu1",
    command="python train.py\n\x1b]0;x\x07",
    state=JobState.UNREACHABLE,
    tags=("sweep", "\x1b[2J"),
    launch_id="20261121-053000-00112233445566778899aabbccdd1234",
    node_rank=0,
    reason="last seen running, 40 s ago\u202e",
    created_at=0.0,
)
LONG = Job(
    key=123456,
    id="20261121-053000-00000000000000000000000000000000",
    server="gpu-server-with-a-long-name",
    command="python train.py --learning-rate 0.1",
    state=JobState.FAILED,
    signal="SIGKILL",
    tags=("a-tag", "and-another"),
    created_at=0.0,
)

WIDE = replace(LONG, key=7, server="机器", command="python 训练.py " + "漢字" * 60, tags=("標籤",))


@pytest.mark.row(110)
def test_rows_in_a_pipe_have_no_empty_column_and_no_escape(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = (time.strftime("%Y-%m-%dT%H:%M", time.localtime(moment)) for moment in (7200, 0))
    ended = Job(
        key=3,
        id=JOB.id,
        server="second",
        command="exit 3",
        state=JobState.FAILED,
        exit_code=3,
        created_at=7199.0,
        started_at=7200.0,
        ended_at=7295.0,
    )
    print_jobs([ended, JOB])
    assert capfd.readouterr().out == (
        "KEY  SERVER  STATE        EXIT  LAUNCH  STARTED           DURATION  TAGS           "
        "REASON                             COMMAND\n"
        f"3    second  failed       3     -       {first}  1m35s     -              "
        "-                                  exit 3\n"
        f"12   gpu1    unreachable  -     1234/0  {second}  -         sweep,\\x1b[2J  "
        "last seen running, 40 s ago\\u202e  python train.py \\x1b]0;x\\x07\n"
    )


def test_the_rank_that_failed_first_is_named_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    failure = RankFailure(
        server="gpu2",
        rank=3,
        host="node\x1b[2Jb",
        exit_code=1,
        message="ValueError: bad\nluck",
        traceback='Traceback (most recent call last):\n  File "train.py", line 5\nValueError: bad\nerror: luck',
    )
    failed = replace(JOB, server="gpu2", state=JobState.FAILED, exit_code=1, reason="")
    show_end(FollowAnswer((failed,), {"gpu9": ConnectError("gpu9 does not answer", hint="ping gpu9")}, failure))
    out, err = capfd.readouterr()
    assert out == ""
    assert err == (
        "job 12 on gpu2: failed, exit code 1\n"
        "first to fail: gpu2, rank 3: ValueError: bad luck\n"
        '  Traceback (most recent call last):\n    File "train.py", line 5\n  ValueError: bad\n  error: luck\n'
        "error: gpu9 does not answer\n"
        "hint: ping gpu9\n"
    )


def test_a_line_that_has_no_end_yet_is_shown_when_following_breaks_off(capfd: pytest.CaptureFixture[str]) -> None:
    def break_off(show: OnChunk) -> FollowAnswer:
        show(Chunk(JOB, "out", b"last words", "gpu1"))
        raise ConnectError("gpu1 is away")

    with pytest.raises(ConnectError):
        show_until_end(break_off, JobSelection())
    assert capfd.readouterr().out == "gpu1 | last words\n"


def test_a_server_is_named_unless_its_error_does_so(capfd: pytest.CaptureFixture[str]) -> None:
    messages = {"a": "the project has no room", "gpu1": "gpu1.lab is away", "b": "no room on b.", "c": "c: no room"}
    show_failures({name: ConnectError(message) for name, message in messages.items()})
    assert capfd.readouterr().err.splitlines() == [
        "error: a: the project has no room",
        "error: gpu1: gpu1.lab is away",
        "error: no room on b.",
        "error: c: no room",
    ]


@pytest.mark.row(110)
def test_what_steps_tell_is_a_line_each_in_a_pipe_and_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    with Console(show_output=True, activity="connecting") as console:
        console.report(StepStarted("gpu1", "setup"))
        console.report(StepProgress("gpu1", "setup", "half\x1b[2J"))
        console.report(StepOutput("gpu1", "setup", b"10%\r20%\x1b[1A\nred\xff\n"))
        console.report(StepEnded("gpu1", "setup", Outcome.DONE, "made\x07", 12.34))
        console.report(StepEnded("gpu1", "rsync", Outcome.UNCHANGED, "[bold]nothing[/bold] to send :smile:"))
        console.report(StepEnded("gpu2", "setup", Outcome.FAILED, "no disk", 1.0))
        console.report(Notice("gpu1", "new key \u202e"))
        console.trace("gpu1", "echo a\nb \x9b2J", 0.5)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "gpu1 | 10%",
        "gpu1 | 20%\\x1b[1A",
        "gpu1 | red\ufffd",
        "gpu1: setup: done (12.3 s), made\\x07",
        "gpu1: rsync: unchanged, [bold]nothing[/bold] to send :smile:",
        "gpu2: setup: failed (1.0 s), no disk",
        "gpu1: new key \\u202e",
        "[gpu1] 0.500 s  echo a b \\x9b2J",
    ]


def test_a_pipe_hears_now_and_then_how_far_a_long_step_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Console(activity="connecting") as console:
        console.report(StepStarted("gpu1", "rsync"))
        for now in range(80):
            console.report(StepProgress("gpu1", "rsync", f"{now} % of 1.0 GiB\x07"))
        console.report(StepEnded("gpu1", "rsync", Outcome.DONE, "", 80.0))
        console.report(StepProgress("gpu1", "rsync", "too late"))
    assert capfd.readouterr().err.splitlines() == [
        *(f"gpu1: rsync: {second} % of 1.0 GiB\\x07" for second in (5, 35, 65)),
        "gpu1: rsync: done (80.0 s)",
    ]


def test_what_clean_removes_and_keeps_is_a_number_with_its_size(capfd: pytest.CaptureFixture[str]) -> None:
    print_items(
        [CleanItem("gpu1", "logs of steps", 22, 345_678, 11, 300_000), CleanItem("gpu1", "notes", 1, 10, 1, 10)], "here"
    )
    assert capfd.readouterr().out.splitlines() == [
        "WHERE  WHAT           REMOVE          KEEP",
        "gpu1   logs of steps  11 (293.0 KiB)  11 (44.6 KiB)",
        "gpu1   notes          1 (10 B)        -",
    ]


def test_a_pipe_hears_that_a_step_runs_which_does_not_say_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Console(activity="connecting") as console:
        console.report(StepStarted("gpu1", "packages"))
        for second in range(40):
            now = float(second)
            console.report(StepProgress("gpu1", "packages", ""))
    assert capfd.readouterr().err.splitlines() == [
        "gpu1: packages: running for 5 s",
        "gpu1: packages: running for 35 s",
    ]


@pytest.mark.row(110)
def test_errors_are_clear_without_colour_and_a_hint_stands_once(capfd: pytest.CaptureFixture[str]) -> None:
    errors = {name: ConnectError(f"{name} \x1b[2J is away", hint="ping it") for name in ("gpu1", "gpu2")}
    errors["gpu3"] = ConnectError("does not answer")
    show_error(SomeServersFailedError(errors, []))
    show_error(ConfigError(["a.yaml:1: x: wrong", "a.yaml:2: y: wrong"], hint="look"))
    assert capfd.readouterr().err.splitlines() == [
        "error: gpu1 \\x1b[2J is away",
        "error: gpu2 \\x1b[2J is away",
        "error: gpu3: does not answer",
        "hint (gpu1, gpu2): ping it",
        "error: a.yaml:1: x: wrong",
        "error: a.yaml:2: y: wrong",
        "hint: look",
    ]


def test_servers_that_need_the_same_have_one_hint_and_one_alone_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    hints = {
        "gpu1": "Check servers.gpu1.port",
        "gpu2": "Check servers.gpu2.port",
        "gpu3": "Look at gpu3",
        "gpu4": "Look",
    }
    hints |= {"gpu5": "Try: ssh -p 1 u@10.0.0.5", "gpu6": "Try: ssh u@10.0.0.6"}
    hints |= {"gpu7": "Check gpu7, or: ssh -p 7 u@gpu7", "gpu8": "Check gpu8, or: ssh -p 8 u@gpu8"}
    hints |= {"gpu9": "Run: ssh u@gpu9", "gpu10": "Run: ssh u@gpu10"}
    show_failures({name: ConnectError(f"{name} is away", hint=hint) for name, hint in hints.items()})
    show_failures({f"node{number}": ConnectError("is away", hint="ping it") for number in range(20)})
    shown = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hint")]
    assert shown == [
        "hint (gpu1, gpu2): Check servers.NAME.port",
        "hint: Look at gpu3",
        "hint (gpu4): Look",
        "hint (gpu5, gpu6): Try: ssh -p 1 u@10.0.0.5",
        "hint (gpu7, gpu8): Check NAME, or: ssh -p 7 u@gpu7",
        "hint (gpu9, gpu10): Run: ssh u@NAME",
        f"hint ({', '.join(f'node{number}' for number in range(8))} and 12 more): ping it",
    ]


def test_a_problem_of_this_machine_is_shown_once(capfd: pytest.CaptureFixture[str]) -> None:
    names = ("first", "second")
    show_failures(dict.fromkeys(names, SyncError("rsync is not installed on this machine", hint="apt install rsync")))
    show_failures(dict.fromkeys(names, ConnectError("Cannot connect to the jump host", server="jump")))
    assert capfd.readouterr().err.splitlines() == [
        "error: rsync is not installed on this machine",
        "hint: apt install rsync",
        "error: first: Cannot connect to the jump host",
        "error: second: Cannot connect to the jump host",
    ]


def test_a_step_that_failed_names_its_server_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        console.report(StepEnded("gpu2", "rsync", Outcome.FAILED, "gpu2: the disk is full", 1.0))
    assert capfd.readouterr().err == "gpu2: rsync: failed (1.0 s), the disk is full\n"


def test_steps_of_a_server_with_nothing_to_do_are_shown_only_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    steps = [
        StepEnded("gpu1", "environment", Outcome.UNCHANGED, "Python"),
        StepEnded("gpu2", "environment", Outcome.UNCHANGED, "Python"),
        StepEnded("gpu2", "rsync", Outcome.DONE, "sent"),
        StepEnded("gpu2", "packages", Outcome.UNCHANGED, "none"),
        StepEnded("gpu2", "supervisor", Outcome.DONE, "0123", is_internal=True),
        StepEnded("gpu1", "supervisor", Outcome.FAILED, "no room", is_internal=True),
    ]
    for verbose in (0, 1):
        with Console(verbose=verbose, only_changes=True) as console:
            for step in steps[: len(steps) if verbose else -1]:
                console.report(step)
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(", ")[0] for line in lines[:3]] == [
        "gpu2: environment: unchanged",
        "gpu2: rsync: done (0.0 s)",
        "gpu2: packages: unchanged",
    ]
    assert [line.split(":")[1].strip() for line in lines[3:]] == [step.step for step in steps]


@pytest.mark.parametrize("columns", [50, 80])
def test_an_error_breaks_between_words_on_a_terminal(tmp_path: Path, columns: int) -> None:
    path = ".remote/logs/" + "0123456789" * 9
    message = (
        f"gpu1: the whole of a sentence that is longer than a line of the terminal says why\n  look at {path} then"
    )
    show = f"import {__name__} as t; t.show_error(t.ConnectError({message!r}, hint='do it ' * 30))"
    environment = {"PYTHONPATH": str(REPOSITORY), "COLUMNS": str(columns)}
    with Terminal(cwd=tmp_path, program=["-c", show], environment=environment) as terminal:
        assert terminal.end() == 0
        lines = terminal.text.splitlines()
    assert max(len(line) for line in lines if path not in line) <= columns
    assert sum(path in line for line in lines) == 1
    assert " ".join(" ".join(lines).split()) == " ".join(f"error: {message} hint: {'do it ' * 30}".split())
    assert all(line.startswith(("error: ", "hint: ", "  ")) for line in lines)


def drawn(jobs: str, columns: int, cwd: Path) -> list[str]:
    """Return the lines that a terminal of so many columns shows."""
    show = f"import tests.extended.cli.output.test_output as t; t.print_jobs({jobs})"
    environment = {"PYTHONPATH": str(REPOSITORY), "COLUMNS": str(columns)}
    with Terminal(cwd=cwd, program=["-c", show], environment=environment) as terminal:
        assert terminal.end() == 0
        lines = [line.rstrip() for line in terminal.text.splitlines()]
    assert max(map(cell_len, lines)) <= columns
    return lines


def test_a_table_fits_a_terminal_of_80_columns_and_keeps_the_reason(tmp_path: Path) -> None:
    lines = drawn("[t.JOB, t.LONG]", 80, tmp_path)
    assert lines[0].split() == ["KEY", "SERVER", "STATE", "EXIT", "STARTED", "TAGS", "COMMAND"]
    assert re.match(r" *12  gpu1 +unreachable +\d{4}-\d\d-\d\d ", lines[1])
    assert lines[2].strip() == "last seen running, 40 s ago\\u202e"
    assert re.fullmatch(r"123456  gpu-server-…  failed +SIGKILL +\d{4}-\d\d-\d\d +a-tag,a…  python.*…", lines[-1])


@pytest.mark.parametrize("columns", [30, 50, 80, 200])
@pytest.mark.parametrize("jobs", ["[t.JOB, t.LONG]", "[t.WIDE]"])
def test_no_terminal_is_too_narrow_for_keys_and_states(tmp_path: Path, columns: int, jobs: str) -> None:
    lines = drawn(jobs, columns, tmp_path)
    words = " ".join(lines).split()
    for job in eval(jobs, {"t": sys.modules[__name__]}):
        assert str(job.key) in words
        assert job.state.value in words


def test_a_wide_terminal_shows_every_column_and_a_narrow_one_drops_the_least_important(tmp_path: Path) -> None:
    every = ["KEY", "SERVER", "STATE", "EXIT", "LAUNCH", "STARTED", "DURATION", "TAGS", "COMMAND"]
    jobs = "[t.replace(t.LONG, launch_id='a-1234', node_rank=0, started_at=1e8, ended_at=1e8 + 90000)]"
    columns = {width: drawn(jobs, width, tmp_path)[0].split() for width in (130, 85, 75, 68)}
    assert columns == {
        130: every,
        85: [name for name in every if name != "LAUNCH"],
        75: [name for name in every if name not in {"LAUNCH", "DURATION"}],
        68: [name for name in every if name not in {"LAUNCH", "DURATION", "TAGS"}],
    }
    assert drawn(jobs, 55, tmp_path) == [
        "123456  gpu-server-with-a-long-name  failed  SIGKILL",
        "  1973-03-03  1d1h  1234/0  a-tag,and-another",
        "  python train.py --learning-rate 0.1",
    ]


def test_who_started_jobs_is_shown_where_several_people_did(capfd: pytest.CaptureFixture[str]) -> None:
    ann, bob = (replace(JOB, key=key, started_by=name) for key, name in ((1, "ann@tower"), (2, "bob@laptop\x07")))
    print_jobs([ann, ann, JOB])
    assert "WHO" not in capfd.readouterr().out
    print_jobs([ann, bob, JOB])
    header, *rows = capfd.readouterr().out.splitlines()
    assert header.split().index("WHO") == 7
    assert [row.split()[7] for row in rows] == ["ann@tower", "bob@laptop\\x07", "-"]


def test_the_gpus_of_jobs_are_a_column_where_some_were_given(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    print_jobs([JOB, replace(JOB, gpus=("0", "3"))])
    header, *rows = capfd.readouterr().out.splitlines()
    assert header.split()[-3:] == ["GPUS", "REASON", "COMMAND"]
    assert [row.split()[8] for row in rows] == ["-", "0,3"]
    jobs = "[t.replace(t.LONG, gpus=('GPU-8932f937-d72c-4106-c12f-20bd9faed9f6', 'GPU-5ac02f11')), t.LONG]"
    wide, usual = (drawn(jobs, width, tmp_path) for width in (200, 80))
    narrow = drawn("[t.replace(t.LONG, signal='', gpus=('0', '3'))]", 50, tmp_path)
    assert "  GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-5ac02f11  " in wide[1]
    assert "GPUS" in usual[0].split()
    assert "GPU-8932f93…" in usual[1]
    assert narrow == [
        "123456  gpu-server-with-a-long-name  failed",
        "  1970-01-01  a-tag,and-another  GPUs 0,3",
        "  python train.py --learning-rate 0.1",
    ]


@pytest.mark.parametrize("width", [50, 80, 200])
def test_the_name_the_progress_and_the_note_of_a_job_fit_every_width(width: int, tmp_path: Path) -> None:
    more = "name='baseline', status_values=('epoch=3/10', 'loss=0.25'), note='lr too high'"
    lines = drawn(f"[t.replace(t.JOB, reason='', {more})]", width, tmp_path)
    assert all(len(line) <= width for line in lines)
    assert "baseline" in "\n".join(lines)
    assert "epoch=3/10,loss=0.25" in "\n".join(lines)
    assert lines[-1].endswith("  lr too high")


def test_one_reason_of_several_jobs_is_said_once(tmp_path: Path) -> None:
    lines = drawn("[t.replace(t.JOB, key=key) for key in (7, 8, 9)]", 80, tmp_path)
    assert sum("last seen" in line for line in lines) == 1
    assert lines[-1].strip() == "7 to 9: last seen running, 40 s ago\\u202e"


def test_a_reason_does_not_repeat_the_error_of_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    error = ConnectError("gpu1 is not prepared")
    print_jobs([replace(JOB, reason="last seen running, 3 s ago; gpu1 is not prepared")], errors={"gpu1": error})
    out = capfd.readouterr().out
    assert "last seen running, 3 s ago " in out
    assert "not prepared" not in out


@pytest.mark.row(110)
def test_a_program_on_a_terminal_cannot_steer_it(project: Path) -> None:
    hostile = r"printf 'a\033]0;owned\007b\033[2Jc\2332J\033[31mred\n10%%\r\033[K20%%'"
    with Terminal("run", "--server", "first", "--cmd", hostile, cwd=project) as terminal:
        assert terminal.end() == 0
        assert terminal.raw.decode() == ("a\\x1b]0;owned\\x07b\\x1b[2Jc\ufffd2J\x1b[31mred\r\n10%\r\x1b[K20%\x1b[0m")


def test_what_comes_beside_a_progress_bar_is_not_glued_to_it(tmp_path: Path) -> None:
    """The streams of a job come one after the other: what tqdm clears for its text may come after that."""
    show = """if True:
        from remote_tool.cli.output.log_lines import ExactOutput
        output = ExactOutput()
        for stream, data in (
            (2, b"\\r 10%|#"), (1, b"text\\n"), (2, b"\\r      \\r"), (2, b"\\r 20%|##"), (2, b" 2/10"),
            (1, b"mo"), (1, b"re\\n"), (2, b"\\r100%\\n"), (1, b"end\\n"),
        ):
            output.write("", stream, data)
        output.close()
    """
    with Terminal(cwd=tmp_path, program=["-c", show], environment={"PYTHONPATH": str(REPOSITORY)}) as terminal:
        assert terminal.end() == 0
    shown = terminal.raw.decode()
    assert shown == ("\r 10%|#\r\x1b[Ktext\r\n\r      \r\r 20%|## 2/10\r\x1b[Kmore\r\n\r100%\r\nend\r\n")
