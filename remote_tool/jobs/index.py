"""An index of the records of finished jobs, in one file: to list ten thousand takes one read, and a stat of each.

Records are authoritative. A line is valid as long as its record is the very file it was made from; without a valid
index, all records are read. This module is the only one that knows the format.
"""

from __future__ import annotations

import functools
import json
import os
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from remote_tool.jobs.job import Job
from remote_tool.protocol.job_fields import JOB_FIELDS
from remote_tool.system.files import read_bounded, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job

NAME = ".index"
RECORD = "job.yaml"
FIELDS = tuple(each.name for each in JOB_FIELDS)
# The header of another version or of another kind of record is ignored.
_TITLE = f"remote-tool 1 {' '.join(FIELDS)}".encode()
_LARGEST = 256 * 1024 * 1024
# A job with a longer command is read from its record.
_LONGEST_LINE = 16 * 1024
# A file system may count time in steps of up to two seconds, so a recent change may go unnoticed.
SETTLED_SECONDS = 2.0
# The index is rewritten when it lacks this many jobs.
LEAST_NEW = 100


class Line(NamedTuple):
    """A finished job.

    Attributes:
        stamp: Distinguishes its record from any other file in its place.
        server: The server's name; empty if it does not have the job any longer.
        values: The fields of the job, as a JSON list.
    """

    stamp: str
    server: str
    values: str


class Index:
    """The lines that this program has read or will write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, Line] | None = None
        self._new: dict[str, Line] = {}

    def lines(self, names: Iterable[str]) -> dict[str, Line]:
        """Return the lines of jobs whose records have not changed."""
        if self._lines is None:
            self._lines = _read(self._folder / NAME)
        known = self._lines
        if not known:
            return {}
        valid = {}
        with suppress(OSError):
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for name in names:
                    if name in known and known[name].stamp == _stamp_at(f"{name}/{RECORD}", folder):
                        valid[name] = known[name]
            finally:
                os.close(folder)
        return valid

    def add(self, job: Job, record: os.stat_result) -> None:
        """Add a finished job and its record's stamp."""
        values = json.dumps([getattr(job, name) for name in FIELDS])
        if len(values) <= _LONGEST_LINE and _is_settled(record):
            self._new[job.id] = Line(_stamp(record), "" if job.cleaned else job.server, values)

    def keep(self, names: Sequence[str]) -> None:
        """Write the lines of these jobs once enough are new; a failed write does no harm."""
        if len(self._new) < LEAST_NEW:
            return
        lines = {**(self._lines or {}), **self._new}
        self._lines, self._new = {name: lines[name] for name in names if name in lines}, {}
        with suppress(OSError):
            write_atomically(self._folder / NAME, _format(self._lines))


def values_of(lines: Mapping[str, Line]) -> list[dict[str, Any]]:
    """Return the jobs' fields from some lines.

    Raises:
        ValueError: A line is damaged or of another job.
    """
    try:
        rows = json.loads(f"[{','.join(line.values for line in lines.values())}]")
    except RecursionError:
        raise ValueError("a line that is nested too deep") from None
    jobs = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    if [values["id"] for values in jobs] != list(lines):
        raise ValueError("a line of another job")
    return jobs


def _read(path: Path) -> dict[str, Line]:
    try:
        data, _ = read_bounded(path, _LARGEST)
        title, checksum, text = data.split(b"\n", 2)
        if title != _TITLE or int(checksum, 16) != zlib.crc32(text):
            return {}
        rows = [row.split("\t") for row in text.decode().splitlines()]
        # Thousands of jobs have few servers.
        name_of = functools.cache(json.loads)
        return {name: Line(stamp, name_of(server), values) for name, stamp, server, values in rows}
    except (OSError, ValueError):
        return {}


def _format(lines: Mapping[str, Line]) -> bytes:
    # JSON escapes tabs and line breaks.
    rows = [f"{name}\t{line.stamp}\t{json.dumps(line.server)}\t{line.values}\n" for name, line in lines.items()]
    text = "".join(rows).encode()
    return b"%s\n%08x\n%s" % (_TITLE, zlib.crc32(text), text)


def _stamp_at(path: str, folder: int) -> str:
    try:
        return _stamp(os.stat(path, dir_fd=folder, follow_symlinks=False))
    except OSError:
        return ""


def _stamp(state: os.stat_result) -> str:
    return f"{state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"


def _is_settled(state: os.stat_result) -> bool:
    return time.time() - max(state.st_mtime, state.st_ctime) > SETTLED_SECONDS
