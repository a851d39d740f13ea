"""What faulthandler writes is read, and equal processes are shown together, the odd rank first."""

from __future__ import annotations

import json
from typing import Any

from remote_tool.jobs.stacks import ProcessStack, StackFrame, grouped, read_threads

TORCH = "/env/lib/python3.11/site-packages/torch"
DUMP = f"""\
Thread 0x00007f0000000001 [pin memory] (most recent call first):
  File "{TORCH}/utils/data/_utils/pin_memory.py", line 55 in do_one_step
Thread 0x00007f0000000002 (most recent call first):
  <no Python frame>

Current thread 0x00007f0000000000 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/me/project/train.py", line 88 in main
  File "/home/me/project/train.py", line ??? in <module>
"""


def process(rank: int | None, text: str = DUMP, **fields: Any) -> ProcessStack:
    values = {"job": 1, "server": "gpu1", "pid": 100, "is_child": False, "command": "python", "why": "", **fields}
    return ProcessStack(rank=rank, threads=read_threads(text), **values)


def test_a_dump_is_read_thread_by_thread() -> None:
    pinned, nothing, main = read_threads(DUMP)
    assert [frame.function for frame in pinned] == ["do_one_step"]
    assert nothing == ()
    assert main[2:] == (
        StackFrame("/home/me/project/train.py", 88, "main"),
        StackFrame("/home/me/project/train.py", 0, "<module>"),
    )
    assert read_threads("") == read_threads("no dump\n\x1b[31m") == ()


def test_a_place_is_what_the_projects_code_calls_and_where() -> None:
    assert process(0).where == "all_reduce (train.py:88)"
    own = 'Current thread 0x1 (most recent call first):\n  File "train.py", line 5 in step\n'
    assert process(0, own).where == "step (train.py:5)"
    others = f'Current thread 0x1 (most recent call first):\n  File "{TORCH}/run.py", line 9 in poll\n'
    assert process(None, others).where == "poll (run.py:9)"
    assert process(0, "", why="it is stopped").where == "it is stopped"


def test_native_calls_are_not_of_the_project() -> None:
    frames = [("clock_nanosleep", "/usr/lib/libc.so.6", 0), ("time_sleep", "/env/lib/libpython3.11.so.1.0", 0)]
    frames += [("hang", "/home/me/project/train.py", 4)]
    calls = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
    threads = [{"thread_name": "MainThread", "frames": calls}, {"thread_name": "pin", "frames": []}]
    native = process(0, json.dumps(threads))
    assert (native.where, len(native.threads)) == ("time_sleep (train.py:4)", 2)
    assert read_threads("[{}]") == read_threads("[nothing") == ()


def test_the_odd_rank_comes_first_and_the_rest_is_one_line() -> None:
    other = DUMP.replace("train.py", "data.py").replace("88", "31").replace("all_reduce", "__next__")
    found = [*(process(rank) for rank in (*range(7), 9)), process(8, other), process(8, other, is_child=True)]
    found += [process(None, pid=7), process(None, other, pid=8, server="gpu2")]
    assert [f"{group.label}: {group.where}" for group in grouped(found)] == [
        "rank 8: __next__ (data.py:31)",
        "ranks 0-6, 9: all_reduce (train.py:88)",
        "1 child of rank 8: __next__ (data.py:31)",
        "process 7 on gpu1: all_reduce (train.py:88)",
        "process 8 on gpu2: __next__ (data.py:31)",
    ]


def test_the_calls_of_the_launcher_are_folded() -> None:
    def stack(*calls: tuple[str, str]) -> ProcessStack:
        lines = "".join(f'  File "{file}", line 1 in {function}\n' for file, function in calls)
        return process(None, f"Current thread 0x1 (most recent call first):\n{lines}")

    python = "/usr/lib/python3.11"
    run = [(f"{TORCH}/distributed/elastic/agent/server/api.py", "_invoke_run"), (f"{TORCH}/distributed/run.py", "main")]
    started = [("<frozen runpy>", "_run_code"), ("<frozen runpy>", "_run_module_as_main")]
    assert stack(*run, *started).folded == ((), 4)
    assert stack((f"{python}/threading.py", "wait"), *run, ("/env/bin/torchrun", "<module>")).folded == ((), 4)
    own = [(f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"), ("/home/me/project/train.py", "<module>")]
    assert [frame.function for frame in stack(*own, *started).folded[0]] == ["all_reduce", "<module>"]
    assert stack(*own).folded[1] == stack().folded[1] == 0
    loader = [("/home/me/project/data.py", "load"), (f"{python}/multiprocessing/process.py", "run")]
    assert [frame.function for frame in stack(*loader).folded[0]] == ["load"]
