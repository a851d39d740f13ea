"""Explain the failure of a rank of torchrun from its error file, its output, and torchrun's summary.

Used by the supervisors of a launch, by others once a torchrun job has failed, and by the client to show failures.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress

from remote_tool.protocol import job_folder
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import signal_name
from remote_tool.protocol.streams import find_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Match, Optional, Tuple

# A traceback is at the end of a rank's output, and torchrun's summary at the end of its own stderr.
TAIL = 64 * 1024
LONGEST_LINE = 300
_ERROR_FILE_LIMIT = 1024 * 1024
# Lines kept without a traceback; and after an exception, whose own text may have several lines.
_LAST_LINES = 10
_MOST_RANKS = 256
_HEADER = "Traceback (most recent call last):"
_HEADERS = {_HEADER, f"+ Exception Group {_HEADER}"}
_CHAIN = {
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
}
# Python prints these without a header when they are in the script itself.
_NO_SCRIPT = ("SyntaxError: ", "IndentationError: ", "TabError: ")
# torch writes it before each line of an uncaught exception, once there is a process group.
_RANK_PREFIX = re.compile(r"^\[rank([0-9]{1,7})\]: ")
_GROUP_LINE = re.compile(r"\s*\| (\S.*)")
# Printed for an uncaught exception in C++.
_WHAT = re.compile(r"^  what\(\):  (.+)$", re.MULTILINE)
_FAILURES_HEADING = "Failures:"
_SUMMARY_HEADING = "Root Cause (first observed failure)"
_SUMMARY = re.compile(
    r"host\s+: (?P<host>\S+)\s+rank\s+: (?P<rank>[0-9]{1,7}) \(local_rank: (?P<local>[0-9]{1,6})\)"
    r"\s+exitcode\s+: (?P<code>-?[0-9]{1,10})"
)
# Messages about a lost peer: a consequence, not the cause.
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket|nccl|process group|DistBackendError|SignalException",
    re.IGNORECASE,
)


class Traceback(NamedTuple):
    """An exception that a rank printed.

    Attributes:
        message: First line of the exception itself, such as ``ValueError: bad batch``.
        text: The whole traceback, without torch's line prefixes.
        rank: Global rank from torch's prefix, which means that the exception was not caught.
    """

    message: str
    text: str
    rank: Optional[int] = None


class RankEnd(NamedTuple):
    """A failed local rank in torchrun's summary.

    Attributes:
        host: The machine's own hostname.
        rank: Its global rank.
        exit_code: Of its process; negative: the signal that ended it.
        is_first: Whether torchrun saw it fail first; the order of failures within 0.1 s is arbitrary.
    """

    host: str
    rank: int
    exit_code: int
    is_first: bool = True

    @property
    def signal(self) -> str:
        """Return the name of the signal that ended it; empty without one."""
        return signal_name(-self.exit_code) if self.exit_code < 0 else ""


def is_consequence(message: str) -> bool:
    """Return whether it is a message about a lost peer."""
    return _CONSEQUENCE.search(message) is not None


def read_summary(text: str) -> Dict[int, RankEnd]:
    """Return the first failure and ranks ended by a signal, by local rank, without those that torchrun stopped."""
    others, _, first = text[max(0, text.rfind(_FAILURES_HEADING)) :].rpartition(_SUMMARY_HEADING)
    ends = [_read_end(each, is_first=False) for each in _SUMMARY.finditer(others)]
    found = {local: end for local, end in ends if end.signal not in {"", "SIGTERM"}}
    if _SUMMARY_HEADING in text:
        found.update(_read_end(each, is_first=True) for each in _SUMMARY.finditer(first))
    return found


def _read_end(found: Match[str], *, is_first: bool) -> Tuple[int, RankEnd]:
    return int(found["local"]), RankEnd(found["host"], int(found["rank"]), int(found["code"]), is_first)


def describe_rank(end: Optional[RankEnd], error: Optional[Traceback], printed: str) -> str:
    """Explain the failure of a rank; empty if unknown."""
    if error is not None and error.rank is not None:
        # It may have been aborted at its exit.
        return error.message
    if end is not None and end.signal:
        what = _WHAT.findall(printed)
        return f"ended by {end.signal}: {what[-1][:LONGEST_LINE]}" if what else f"ended by {end.signal}"
    return error.message if error is not None else ""


def read_traceback(text: str) -> Optional[Traceback]:
    """Return the last exception in a rank's output; None without one."""
    lines = text.replace("\r\n", "\n").split("\n")
    return _read_marked(lines) or _read_plain(lines)


def last_lines(text: str) -> str:
    """Return the end of a text."""
    return "\n".join(line[:LONGEST_LINE] for line in text.rstrip().splitlines()[-_LAST_LINES:])


def _read_marked(lines: List[str]) -> Optional[Traceback]:
    """Return the last exception with torch's prefix: it ends where the prefixes do, whatever its text is."""
    found = [_RANK_PREFIX.match(line) for line in lines]
    body = [_RANK_PREFIX.sub("", line) for line in lines]
    headers = [number for number, mark in enumerate(found) if mark and body[number].strip() in _HEADERS]
    if not headers:
        return None
    start = end = headers[-1]
    for number in range(start, -1, -1):
        if not found[number] and lines[number]:
            break
        start = number if number in headers else start
    while end + 1 < len(lines) and (found[end + 1] or not lines[end + 1]):
        end += 1
    mark = found[start]
    assert mark is not None
    return _traceback(body[start : end + 1], int(mark[1]))


def _read_plain(lines: List[str]) -> Optional[Traceback]:
    headers = [number for number, line in enumerate(lines) if line.strip() in _HEADERS]
    if not headers:
        last = next((line for line in reversed(lines) if line.strip()), "")
        return Traceback(last, last_lines("\n".join(lines))) if last.startswith(_NO_SCRIPT) else None
    start = headers.pop()
    end = next((n for n in range(start + 1, len(lines)) if lines[n][:1].strip()), len(lines) - 1)
    while headers and any(line in _CHAIN for line in lines[max(0, start - 3) : start]):
        start = headers.pop()
    return _traceback(lines[start : end + 1 + _LAST_LINES])


def _traceback(lines: List[str], rank: Optional[int] = None) -> Traceback:
    last = max(number for number, line in enumerate(lines) if line.strip() in _HEADERS)
    message = next((line for line in lines[last + 1 :] if line[:1].strip()), "")
    if not message:
        groups = [_GROUP_LINE.match(line) for line in lines[last + 1 :]]
        message = next((each[1] for each in groups if each and not each[1].startswith("File ")), "")
    return Traceback(message[:LONGEST_LINE], "\n".join(lines).rstrip(), rank)


class RankError(NamedTuple):
    """An error of a rank, on its server.

    Attributes:
        what: The rank and its message.
        moment: Seconds since the epoch.
        is_first: Whether torchrun saw it fail first.
    """

    what: str
    moment: float
    is_first: bool = False

    @property
    def order(self) -> Tuple[bool, bool, float]:
        return is_consequence(self.what), not self.is_first, self.moment


def find_first_error(folder: int, rank_offset: Optional[int], *, has_ended: bool) -> Optional[RankError]:
    """Return the error of the first rank of a job that failed.

    Args:
        folder: Descriptor of the job's folder.
        rank_offset: Global rank of local rank 0; None when torchrun decides.
        has_ended: Whether the command has failed. Before that, only errors that no rank survives count.
    """
    streams = find_streams(folder)
    ranks = [name.split("/") for name in streams if name.startswith("ranks/")]
    # torchrun restarts failed ranks, and an earlier attempt's failure is not why the job ends.
    attempt = max((int(parts[1]) for parts in ranks), default=0)
    summary = read_summary(_tail(folder, streams["err"])) if has_ended else {}
    found = []
    for local in sorted({int(parts[2]) for parts in ranks if int(parts[1]) == attempt})[:_MOST_RANKS]:
        end = summary.get(local)
        name = f"local rank {local}" if rank_offset is None else f"rank {rank_offset + local}"
        paths = {kind: streams.get(f"ranks/{attempt}/{local}/{kind}") for kind in ("error", "err")}
        error = _of_file(folder, paths["error"], name) or _of_output(folder, paths["err"], end)
        if error is not None:
            found.append(error)
    return min(found, key=lambda each: each.order) if found else None


def _of_file(folder: int, path: Optional[str], name: str) -> Optional[RankError]:
    """Read the error file of torch's ``record`` decorator."""
    moment = _moment_of(folder, path)
    if path is None or moment is None:
        return None
    try:
        message = json.loads(_read(folder, path, 0, _ERROR_FILE_LIMIT))["message"]
        text = str(message["message"] if isinstance(message, dict) else message).split("\n")[0]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        text = "an error that cannot be read"
    return RankError(f"{name}: {text}", moment)


def _of_output(folder: int, path: Optional[str], end: Optional[RankEnd]) -> Optional[RankError]:
    moment = _moment_of(folder, path)
    if path is None or moment is None:
        return None
    printed = _tail(folder, path)
    error = read_traceback(printed)
    if end is not None:
        error_text = describe_rank(end, error, printed) or f"exit code {end.exit_code}"
        return RankError(f"rank {end.rank}: {error_text}", moment, end.is_first)
    if error is not None and error.rank is not None:
        return RankError(f"rank {error.rank}: {error.message}", moment)
    return None


def _moment_of(folder: int, path: Optional[str]) -> Optional[float]:
    """Return when a file was last written; None if unknown."""
    with suppress(OSError):
        if path is not None:
            return os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime
    return None


def _tail(folder: int, path: str) -> str:
    with suppress(OSError):
        return _read(folder, path, TAIL, TAIL)
    return ""


def _read(folder: int, path: str, from_end: int, most: int) -> str:
    """Read a file, or its last bytes."""
    with open(job_folder.open_file_beneath(folder, path), "rb") as stream:
        if from_end:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - from_end))
        return stream.read(most).decode("utf-8", "replace")


def age_of(error: RankError) -> float:
    """Return how many seconds ago it was."""
    return max(0.0, time.time() - error.moment)
