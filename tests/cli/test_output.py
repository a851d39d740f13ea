"""What servers send, shown: exact in a pipe, harmless on a terminal, never torn."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.cli import streams
from remote_tool.cli.console import Console, show_error, show_failures
from remote_tool.cli.following import show_end, show_until_end
from remote_tool.cli.log_lines import LONGEST_LINE, ExactOutput, LabelledOutput
from remote_tool.cli.plain import harmless_line, harmless_stream, one_line, visible
from remote_tool.cli.tables import print_jobs
from remote_tool.errors import ConfigError, ConnectError, SomeServersFailedError
from remote_tool.jobs.job import Job, JobState
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepOutput, StepProgress, StepStarted
from remote_tool.workflows.failures import RankFailure
from remote_tool.workflows.follow_jobs import Chunk, FollowAnswer, OnChunk
from remote_tool.workflows.selection import JobSelection
from tests.cli.terminal import Terminal

REPOSITORY = Path(__file__).parents[2]
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
    assert CONTROLS.search(visible(text)) is None
    assert CONTROLS.search(one_line(text)) is None
    assert CONTROLS.search(PASSING.sub("", harmless_line(text))) is None


def test_written_out_characters_can_be_read() -> None:
    assert visible("a\x1b]0;t\x07\u202e\udcff\tb\nc") == "a\\x1b]0;t\\x07\\u202e\\udcff\tb\nc"
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


@pytest.mark.row(110)
def test_rows_in_a_pipe_have_no_empty_column_and_no_escape(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "time", lambda: 7300.0)
    ended = Job(
        key=3, id=JOB.id, server="second", command="exit 3", state=JobState.FAILED, exit_code=3, created_at=7290.0
    )
    print_jobs([ended, JOB])
    assert capfd.readouterr().out == (
        "KEY  SERVER  STATE        EXIT  LAUNCH  AGE  TAGS           REASON                             COMMAND\n"
        "3    second  failed       3     -       10s  -              -                                  exit 3\n"
        "12   gpu1    unreachable  -     1234/0  2h   sweep,\\x1b[2J  "
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
        "first to fail: gpu2, rank 3 (host node\\x1b[2Jb), exit code 1: ValueError: bad luck\n"
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
        "hint: ping it",
        "error: a.yaml:1: x: wrong",
        "error: a.yaml:2: y: wrong",
        "hint: look",
    ]


def test_a_table_fits_a_terminal_of_80_columns_and_keeps_the_reason(tmp_path: Path) -> None:
    show = "import tests.cli.test_output as t; t.print_jobs([t.JOB, t.LONG])"
    with Terminal(cwd=tmp_path, program=["-c", show], environment={"PYTHONPATH": str(REPOSITORY)}) as terminal:
        assert terminal.end() == 0
        lines = [line.rstrip() for line in terminal.text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["KEY", "SERVER", "STATE", "EXIT", "LAUNCH", "AGE", "TAGS", "COMMAND"]
    assert re.match(r" *12  gpu1 +unreachable +1234/0 ", lines[1])
    assert "last seen running, 40 s ago\\u202e" in " ".join(" ".join(lines).split())
    assert re.fullmatch(r"123456  gpu-server-…  failed +SIGKILL +\d+d  a-tag,a…  python .*…", lines[-1])


@pytest.mark.row(110)
def test_a_program_on_a_terminal_cannot_steer_it(project: Path) -> None:
    hostile = r"printf 'a\033]0;owned\007b\033[2Jc\2332J\033[31mred\n10%%\r\033[K20%%'"
    with Terminal("run", "--server", "first", "--cmd", hostile, cwd=project) as terminal:
        assert terminal.end() == 0
        assert terminal.raw.decode() == ("a\\x1b]0;owned\\x07b\\x1b[2Jc\ufffd2J\x1b[31mred\r\n10%\r\x1b[K20%\x1b[0m")
