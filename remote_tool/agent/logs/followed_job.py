"""A followed job: send each byte of its output exactly once, from the client's offsets on."""

from __future__ import annotations

import errno
import os
import stat
import time

from remote_tool.agent import states
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import NO_SUCH_JOB
from remote_tool.protocol.limits import LONGEST_REASON
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import ENDED, RecordError
from remote_tool.protocol.sparse_files import read_stored
from remote_tool.protocol.streams import find_streams, last_output, stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

    from remote_tool.agent.logs.inotify import FolderChanges
    from remote_tool.agent.states import CachedScan, JobStatus

CHUNK = 256 * 1024
# Interval in seconds for finding new rank files, and for checking whether a job is lost.
_SEARCH_SECONDS = 0.25
_JUDGE_SECONDS = 1.0
# What a queued job waits for is asked of the whole machine.
_QUEUE_SECONDS = 2.5
# For an unreadable job: intervals of retries and of repeated messages, and the time until giving up.
_TROUBLE_SECONDS = 0.5
_REPEAT_SECONDS = 30.0
_PATIENCE, _SHORT_PATIENCE = 600.0, 2.0
# These are errors of the call, not of a job.
_TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}


class _Message(NamedTuple):
    header: Dict[str, Any]
    body: bytes = b""


class FollowedJob:
    """A job that is followed.

    Attributes:
        job_id: Its id; anything if the client sent an invalid one.
        is_done: Whether all output and the end were sent.
        is_behind: Whether more output was left at the last pass.
    """

    def __init__(self, jobs: Optional[int], asked: object, scans: CachedScan, *, wait: bool, output: bool) -> None:
        fields = asked if isinstance(asked, dict) else {}
        self.job_id = str(fields.get("id"))
        self.is_done = False
        self.is_behind = False
        self._jobs = jobs
        self._scans = scans
        self._changes: Optional[FolderChanges] = None
        self._paths: Dict[str, str] = {}
        self._limits: Dict[str, int] = {}
        self._wait = wait
        self._output = output
        self._next_search = 0.0
        self._next_judge = 0.0
        self._ended = False
        self._queued: Optional[str] = None
        self._sent_queued: Optional[str] = None
        self._offsets = _checked_offsets(fields.get("offsets"))
        self._folder: Optional[int] = None
        self._trouble = _Trouble(_PATIENCE if wait else _SHORT_PATIENCE)
        try:
            self._folder = job_folder.open_job(jobs, self.job_id)
        except OSError as error:
            if error.errno in _TOO_MANY_FILES:
                raise

    def watch(self, changes: FolderChanges) -> None:
        """Register the job's folders for notifications."""
        if self._folder is not None:
            changes.watch(self._folder, self.job_id)
            self._changes = changes
            self.expect_streams()

    def expect_streams(self) -> None:
        """Search for new files in the next pass."""
        self._next_search = 0.0

    def advance(self) -> Iterator[_Message]:
        """Send at most one piece of each stream; return the status once the job has ended and all is sent.

        System errors are reported, affect only this job, and are retried.
        """
        if not self._trouble.is_due:
            return
        try:
            yield from self._advance()
            self._trouble.end()
        except OSError as error:
            if error.errno in _TOO_MANY_FILES:
                raise
            self.is_behind = False
            header = self._trouble.note(error)
            if "over" in header:
                self._finish()
            if header:
                yield _Message(header)

    def _advance(self) -> Iterator[_Message]:
        if self._folder is None:
            self._folder = job_folder.open_job(self._jobs, self.job_id)
        if self._folder is None:
            self.is_done = True
            folder_id = job_folder.read_folder_id(self._jobs)
            yield _Message({"error": NO_SUCH_JOB, "folder_id": folder_id})
            return
        # Judged before the last read: output written before the end is read after this.
        self._ended = self._ended or self._has_ended()
        if self._queued != self._sent_queued and not self._ended:
            self._sent_queued = self._queued
            yield _Message({"queued": self._queued})
        self._search()
        self.is_behind = sent = False
        for stream in list(self._paths):
            for message in self._read(stream):
                yield message
                sent = True
        # Output written while the job ended may be readable now.
        self.is_behind = self.is_behind or (sent and self._ended)
        if not sent and (self._ended or not self._wait):
            yield self._status()
            self._finish()

    def _finish(self) -> None:
        self.is_done = True
        if self._folder is not None:
            os.close(self._folder)

    def _has_ended(self) -> bool:
        assert self._folder is not None
        if job_folder.exists(self._folder, ENDED):
            return True
        if not self._wait or time.monotonic() < self._next_judge:
            return False
        self._next_judge = time.monotonic() + _JUDGE_SECONDS
        if states.is_supervised(self._folder, self.job_id):
            self._queued = None
            return False
        job_status = self._judge()
        if isinstance(job_status, states.JobStatus) and job_status.state == "queued":
            self._queued = job_status.reason[:LONGEST_REASON]
            self._next_judge = time.monotonic() + _QUEUE_SECONDS
            return False
        return isinstance(job_status, str) or job_status.state not in {"running", "starting", "queued", "elsewhere"}

    def _judge(self) -> Union[JobStatus, str]:
        assert self._folder is not None
        try:
            return states.judge(self._folder, self.job_id, self._scans.scan())
        except RecordError as error:
            return str(error)

    def _search(self) -> None:
        assert self._folder is not None
        if not self._output:
            return
        if self._paths and not self._ended and time.monotonic() < self._next_search:
            return
        self._next_search = time.monotonic() + _SEARCH_SECONDS
        known = set(self._paths.values())
        for stream, path in find_streams(self._folder, self._watch_folder).items():
            if path not in known:
                # A file keeps the name under which it was first seen.
                self._paths.setdefault(stream, path)

    def _watch_folder(self, folder: int) -> None:
        """Also watch a subfolder, before searching it, so that no file is missed in between."""
        if self._changes is not None:
            self._changes.watch(folder, self.job_id)

    def _read(self, stream: str) -> List[_Message]:
        assert self._folder is not None
        size = _size_of(self._folder, self._paths[stream])
        offset = self._offsets.get(stream, 0)
        if size is None or size == offset:
            return []
        if size < offset:
            self._offsets[stream] = 0
            self.is_behind = True
            return [_Message({"stream": stream, "reset": True})]
        if not self._wait:
            # A file that grows faster than it is sent would never end.
            size = min(size, self._limits.setdefault(stream, size))
        skipped, body = _read_piece(self._folder, self._paths[stream], offset, size)
        self._offsets[stream] = offset + skipped + len(body)
        messages = [_Message({"stream": stream, "offset": offset + skipped, "skipped": skipped})] if skipped else []
        if body:
            messages.append(_Message({"stream": stream, "offset": offset + skipped}, body))
        self.is_behind = self.is_behind or (bool(messages) and self._offsets[stream] < size)
        return messages

    def _status(self) -> _Message:
        job_status = self._judge()
        if isinstance(job_status, str):
            return _Message({"error": job_status})
        assert self._folder is not None
        more = {"sizes": stream_sizes(self._folder), "tail": last_output(self._folder)}
        return _Message({"status": {**job_status.as_answer(self.job_id), **more}})


class _Trouble:
    """The reason that a job is unreadable now, and its age."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: Optional[float] = None
        self._next_try_at = 0.0
        self._next_report = 0.0
        self._why = ""

    @property
    def is_due(self) -> bool:
        """Return whether to try now; always true without an error."""
        return self._since is None or time.monotonic() >= self._next_try_at

    def end(self) -> None:
        self._since = None
        self._why = ""

    def note(self, error: OSError) -> Dict[str, Any]:
        """Return the message for an error, empty when reported recently; ``over``: no further retry."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._next_try_at = now + _TROUBLE_SECONDS
        why = error.strerror or str(error)
        if now - self._since > self._patience:
            return {"trouble": why, "over": True}
        if why == self._why and now < self._next_report:
            return {}
        self._why, self._next_report = why, now + _REPEAT_SECONDS
        return {"trouble": why}


def _is_there(error: OSError) -> bool:
    """Return whether a file that cannot be opened may still exist."""
    return error.errno != errno.ENOENT and not job_folder.is_no_plain_file(error)


def _size_of(folder: int, path: str) -> Optional[int]:
    """Return the size of a plain file below a folder; None if missing, OSError if unknown now."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if _is_there(error):
            raise
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _checked_offsets(offsets: object) -> Dict[str, int]:
    if not isinstance(offsets, dict):
        return {}
    return {name: value for name, value in offsets.items() if type(value) is int and value >= 0}


def _read_piece(folder: int, path: str, offset: int, size: int) -> Tuple[int, bytes]:
    """Read up to a number of bytes from an offset: return the length of a hole, then the bytes after it."""
    try:
        file = job_folder.open_file_beneath(folder, path)
    except OSError as error:
        if _is_there(error):
            raise
        return 0, b""
    try:
        start, body = read_stored(file, offset, size, CHUNK)
        return start - offset, body
    finally:
        os.close(file)
