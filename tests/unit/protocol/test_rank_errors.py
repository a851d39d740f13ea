"""What a rank printed, and what torchrun says of it, is read as it was meant (row 159)."""

from __future__ import annotations

import pytest

from remote_tool.protocol.rank_errors import RankEnd, describe_rank, is_consequence, read_summary, read_traceback

HEADER = "Traceback (most recent call last):"
CHAINED = f"""\
{HEADER}
  File "train.py", line 3, in step
    return self.batches[7]
KeyError: 7

The above exception was the direct cause of the following exception:

{HEADER}
  File "train.py", line 8, in <module>
    step()
ValueError: bad batch at step 7
"""
GROUP = f"""\
  + Exception Group {HEADER}
  |   File "train.py", line 8, in <module>
  | ExceptionGroup: two batches (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: 1
"""


def marked(text: str, rank: int = 3) -> str:
    """Write a text as torch does."""
    return "\n".join(f"[rank{rank}]: {line}" if line else "" for line in text.split("\n"))


@pytest.mark.row(159)
@pytest.mark.parametrize("before", ["", "loading\n", f"{HEADER}\n  File x\nOSError: caught and logged\nstep 6\n"])
@pytest.mark.parametrize("after", ["", "[rank3]:[W1122 12:00:00] Warning: destroy_process_group() was not called\n"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHAINED, "ValueError: bad batch at step 7"),
        (f"{HEADER}\n  File x\nValueError: one\n\n  two\n{'three' * 50}", "ValueError: one"),
        (f"{HEADER}\n  File x\ntorch.cuda.OutOfMemoryError", "torch.cuda.OutOfMemoryError"),
        (GROUP, "ExceptionGroup: two batches (2 sub-exceptions)"),
    ],
)
def test_an_exception_that_torch_marked_is_read_bounded_and_nothing_besides(
    before: str, after: str, text: str, message: str
) -> None:
    found = read_traceback(f"{before}{marked(text)}\n{after}")
    assert found is not None
    assert (found.message, found.text, found.rank) == (message, text.rstrip(), 3)


@pytest.mark.row(159)
def test_the_last_of_several_marked_exceptions_counts() -> None:
    text = f"{marked(CHAINED)}\nagain\n{marked(f'{HEADER}{chr(10)}  File y{chr(10)}OSError: full', 4)}"
    found = read_traceback(text)
    assert found is not None
    assert (found.message, found.rank) == ("OSError: full", 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHAINED, "ValueError: bad batch at step 7"),
        (f"step 1\n{CHAINED}", "ValueError: bad batch at step 7"),
        (CHAINED.replace("\n", "\r\n"), "ValueError: bad batch at step 7"),
        (GROUP, "ExceptionGroup: two batches (2 sub-exceptions)"),
        (
            "  File \"train.py\", line 1\n    x = (\n        ^\nSyntaxError: '(' was never closed\n",
            "SyntaxError: '(' was",
        ),
        (f"{HEADER}\n  File x\n", ""),
        (HEADER, ""),
    ],
)
def test_an_exception_before_there_was_a_process_group_is_read(text: str, message: str) -> None:
    found = read_traceback(text)
    assert found is not None
    assert found.message.startswith(message)
    assert bool(found.message) == bool(message)
    assert found.rank is None


def test_all_of_a_chain_is_shown_and_little_of_what_came_after() -> None:
    found = read_traceback("step 1\n" + CHAINED + "more\n" * 100)
    assert found is not None
    assert found.text.startswith(CHAINED.rstrip())
    assert found.text.count("more") <= 10


@pytest.mark.parametrize("text", ["", "\n\n", "step 1\n", "[rank3]: step 1\n", "[rank3]: \n[rank", "\0\x1b[2J\n"])
def test_a_text_without_an_exception_has_none(text: str) -> None:
    assert read_traceback(text) is None


def summary(*ends: tuple[int, int]) -> str:
    """Write what torchrun does; the last one is the first that failed."""
    entries = [
        f"[{number}]:\n  time      : x\n  host      : node-b\n  rank      : {local + 2} (local_rank: {local})\n"
        f"  exitcode  : {code} (pid: 7)\n"
        for number, (local, code) in enumerate(ends)
    ]
    return f"Failures:\n{''.join(entries[:-1])}Root Cause (first observed failure):\n{entries[-1]}"


@pytest.mark.row(159)
def test_a_rank_that_torchrun_stopped_is_not_the_one_that_failed() -> None:
    assert read_summary(summary((0, -15), (2, 1), (3, -9), (1, 1))) == {
        3: RankEnd("node-b", 5, -9, is_first=False),
        1: RankEnd("node-b", 3, 1),
    }
    assert read_summary("") == {}
    assert read_summary("host : x rank : 1 (local_rank: 1) exitcode : -9") == {}


@pytest.mark.row(159)
def test_an_exception_that_nobody_caught_is_the_cause_of_an_abort_and_a_caught_one_is_not_that_of_a_kill() -> None:
    killed = RankEnd("h", 3, -9)
    assert describe_rank(killed, read_traceback(marked(CHAINED)), "") == "ValueError: bad batch at step 7"
    assert describe_rank(killed, read_traceback(CHAINED), "") == "ended by SIGKILL"
    what = "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory\n"
    assert describe_rank(RankEnd("h", 3, -6), None, what) == "ended by SIGABRT: CUDA error: out of memory"
    assert describe_rank(RankEnd("h", 3, 2), None, "usage: x") == ""


def test_a_peer_that_is_gone_is_a_consequence() -> None:
    assert is_consequence("rank 1: RuntimeError: [pair.cc:537] Read error [10.0.0.1]:1: Connection reset by peer")
    assert not is_consequence("rank 3: ValueError: bad batch at step 7")
