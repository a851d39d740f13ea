"""Following output: the bytes of many jobs as they appear, each exactly once, from the offsets that the client has."""

from __future__ import annotations

import os
import time

from . import job_files, states
from .log_limit import read_stored
from .named_tuple import NamedTuple
from .records import ENDED, RecordError
from .requests import Request, is_list
from .rhythm import Rhythm
from .states import Looks
from .streams import find_streams, size_of, stream_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

    from .changes import Changes
    from .states import Standing

CHUNK = 256 * 1024
# New rank files are looked for this often, and whether a job is lost this often.
_SEARCH_SECONDS = 0.25
_JUDGE_SECONDS = 1.0


class _Message(NamedTuple):
    header: Dict[str, Any]
    body: bytes = b""


def follow(request: Request) -> None:
    """Answer op ``follow`` until every job has ended and been sent, or the client is gone."""
    folders = request.folders()
    asked = request.get("jobs", is_list)
    wait = request.get("wait", lambda value: isinstance(value, bool), default=True)
    output = request.get("streams", lambda value: isinstance(value, bool), default=True)
    jobs = job_files.open_jobs_folder(folders.jobs)
    job_files.allow_open_folders(len(asked))
    looks = Looks()
    followed = [FollowedJob(jobs, job, looks, wait=wait, output=output) for job in asked]
    due: Optional[List[FollowedJob]] = followed
    rhythm = Rhythm()
    while due is not None:
        looks.forget()
        sent = [job for job in due if _send(request, job)]
        followed = [job for job in followed if not job.is_done]
        if not followed:
            request.answer({"done": True})
            return
        due = rhythm.wait(followed, sent)


def _send(request: Request, job: FollowedJob) -> bool:
    """Send what is new of a job; whether there was something."""
    sent = False
    for message in job.advance():
        request.answer({"job": job.job_id, **message.header}, message.body)
        sent = True
    return sent


class FollowedJob:
    """One job while it is followed.

    Attributes:
        job_id: Its id; anything when the client asked for nonsense.
        is_done: Whether all of it was sent, and its end.
        is_behind: Whether there was more to send when it was looked at last.
    """

    def __init__(self, jobs: Optional[int], asked: object, looks: Looks, *, wait: bool, output: bool) -> None:
        fields = asked if isinstance(asked, dict) else {}
        self.job_id = str(fields.get("id"))
        self.is_done = False
        self.is_behind = False
        self._looks = looks
        self._changes: Optional[Changes] = None
        self._paths: Dict[str, str] = {}
        self._limits: Dict[str, int] = {}
        self._wait = wait
        self._output = output
        self._next_search = 0.0
        self._next_judge = 0.0
        self._ended = False
        self._offsets = _checked_offsets(fields.get("offsets"))
        self._folder = job_files.open_job(jobs, self.job_id)

    def watch(self, changes: Changes) -> None:
        """Have changes tell of this job from now on."""
        if self._folder is not None:
            changes.watch(self._folder, self.job_id)
            self._changes = changes
            self.expect_streams()

    def expect_streams(self) -> None:
        """Look for new files the next time."""
        self._next_search = 0.0

    def advance(self) -> Iterator[_Message]:
        """Send at most one piece of every stream; the status when all of it is sent and the job has ended."""
        if self._folder is None:
            self.is_done = True
            yield _Message({"error": "there is no such job on this server"})
            return
        # Looked at before the last read: what is written before the end is read after this.
        self._ended = self._ended or self._has_ended()
        self._search()
        self.is_behind = sent = False
        for stream in list(self._paths):
            for message in self._read(stream):
                yield message
                sent = True
        # What was written while the end came may be there now.
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
        if job_files.exists(self._folder, ENDED):
            return True
        if not self._wait or time.monotonic() < self._next_judge:
            return False
        self._next_judge = time.monotonic() + _JUDGE_SECONDS
        if states.is_supervised(self._folder, self.job_id):
            return False
        standing = self._judge()
        return isinstance(standing, str) or standing.state not in {"running", "starting", "elsewhere"}

    def _judge(self) -> Union[Standing, str]:
        assert self._folder is not None
        try:
            return states.judge(self._folder, self.job_id, self._looks.look())
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
        """Hear of what is written below a folder, too; before it is searched, so that nothing comes in between."""
        if self._changes is not None:
            self._changes.watch(folder, self.job_id)

    def _read(self, stream: str) -> List[_Message]:
        assert self._folder is not None
        size = size_of(self._folder, self._paths[stream])
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
        standing = self._judge()
        if isinstance(standing, str):
            return _Message({"error": standing})
        assert self._folder is not None
        return _Message({"status": {**standing.as_answer(self.job_id), "sizes": stream_sizes(self._folder)}})


def _checked_offsets(offsets: object) -> Dict[str, int]:
    if not isinstance(offsets, dict):
        return {}
    return {name: value for name, value in offsets.items() if type(value) is int and value >= 0}


def _read_piece(folder: int, path: str, offset: int, size: int) -> Tuple[int, bytes]:
    """Read from an offset on, up to a size: how many bytes of a hole come first, then some bytes."""
    try:
        file = job_files.open_file_beneath(folder, path)
    except OSError:
        return 0, b""
    try:
        start, body = read_stored(file, offset, size, CHUNK)
        return start - offset, body
    finally:
        os.close(file)
