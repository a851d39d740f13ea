"""The best value of a metric in the local output of a job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError
from remote_tool.jobs.status_values import LONGEST_LINE, NUMBER, PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remote_tool.jobs.logs import LogFolder

LONGEST_METRIC = 80
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_END_OF_LINE = re.compile(rb"[\r\n]+")


def metric_pattern(name: str, patterns: Mapping[str, str]) -> re.Pattern[str]:
    """Return the pattern of a metric: the user's, a built-in one, or the name before a number.

    Raises:
        UsageError: The name is not one line, or too long.
    """
    if not (name.isprintable() and name.strip() and len(name) <= LONGEST_METRIC):
        raise UsageError(f"--metric must be a name of at most {LONGEST_METRIC} characters, found {name!r:.100}")
    known = {**PATTERNS, **patterns}.get(name)
    return re.compile(known or rf"(?<![\w.]){re.escape(name)}\W{{0,5}}?({NUMBER})", re.IGNORECASE)


def best_value(logs: LogFolder, pattern: re.Pattern[str], mode: str) -> float | None:
    """Return the smallest or largest number that a pattern finds in a job's output; None without one."""
    best = None
    for line in _lines(logs):
        match = pattern.search(line)
        number = None if match is None else _number_in(match[1] or "")
        if number is not None and (best is None or (number < best if mode == "min" else number > best)):
            best = number
    return best


def _number_in(text: str) -> float | None:
    match = _NUMBER.match(text)
    return None if match is None else float(match[0].replace(",", ""))


def _lines(logs: LogFolder) -> Iterator[str]:
    """Yield the ends of all lines of all streams."""
    for stream in logs.sizes():
        rest = b""
        for data in logs.read(stream, 0):
            *lines, rest = _END_OF_LINE.split(rest + data)
            yield from (_end_of(line) for line in lines)
            # A line without an end is bounded, too.
            rest = rest[-4 * LONGEST_LINE :]
        yield _end_of(rest)


def _end_of(line: bytes) -> str:
    return line[-4 * LONGEST_LINE :].decode(errors="replace")[-LONGEST_LINE:]
