"""The best value of a metric in a job's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import UsageError
from remote_tool.jobs.logs import READ_SIZE, LogFolder
from remote_tool.jobs.metrics import best_value, metric_pattern

if TYPE_CHECKING:
    from pathlib import Path


def best(folder: Path, text: bytes, metric: str = "loss", mode: str = "min", **patterns: str) -> float | None:
    logs = LogFolder(folder)
    logs.reset("out")
    logs.write("out", 0, text)
    return best_value(logs, metric_pattern(metric, patterns), mode)


def test_the_best_value_is_in_any_line_also_the_last_without_an_end(tmp_path: Path) -> None:
    assert best(tmp_path, b"loss: 3\nloss 1e-2\rloss=2") == 0.01
    assert best(tmp_path, b"loss: 3\nloss: 1\nloss=7.5", mode="max") == 7.5
    assert best(tmp_path, b"train_loss 5 val_loss 0.1\n") == 5
    assert best(tmp_path, b'{"loss": 1,234.5}\nloss: nan\n') == 1234.5
    assert best(tmp_path, b"loss: -0.5\nloss=-0.25\n") == -0.5
    assert best(tmp_path, b"reward=-5.2\nreward: -7\n", "reward", "max") == -5.2
    assert best(tmp_path, b"nothing\nloss: nan\n") is None


def test_a_metric_is_a_pattern_of_the_user_or_any_word_before_a_number(tmp_path: Path) -> None:
    assert best(tmp_path, b"val/acc: 0.91\nval/acc=0.87\nxval/acc 0.99\n", "val/acc", "max") == 0.91
    assert best(tmp_path, b"score (12 of 20)\n", "score", accuracy="x", score=r"score \((\d+) of") == 12
    for name in ("", " ", "a\nb", "x" * 81):
        with pytest.raises(UsageError, match="--metric must be a name of at most 80 characters"):
            metric_pattern(name, {})


def test_both_streams_count_and_a_missing_file_has_no_values(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    assert best_value(logs, metric_pattern("loss", {}), "min") is None
    logs.write("out", 0, b"loss: 2\n")
    logs.write("err", 0, b"loss: 1\n")
    assert best_value(logs, metric_pattern("loss", {}), "min") == 1


def test_lines_of_any_length_are_read_in_little_memory(tmp_path: Path) -> None:
    long = b"loss: 0.1 " + b"x" * (3 * READ_SIZE) + b" loss: 0.5\n" + b"loss: 4\n"
    assert best(tmp_path, long) == 0.5
    cut = b"x" * (READ_SIZE - 4) + b"\nloss: 0.25\n"
    assert best(tmp_path, cut) == 0.25
