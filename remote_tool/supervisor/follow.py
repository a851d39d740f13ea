"""Following output: the bytes of many jobs as they appear, each exactly once, from the offsets that the client has."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import job_files, states
from .log_limit import read_stored
from .records import ENDED, RecordError, is_job_id
from .requests import Request, client_is_gone, is_list
from .streams import find_streams, size_of, stream_sizes

if TYPE_CHECKING:
    from .states import Standing

CHUNK = 256 * 1024
_SHORTEST_PAUSE = 0.01
_LONGEST_PAUSE = 0.05
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
    followed = [_FollowedJob(jobs, job, wait=wait, output=output) for job in asked]
    pause = 0.0
    while followed:
        if client_is_gone(pause):
            return
        sent = False
        for job in followed:
            for message in job.advance():
                request.answer({"job": job.job_id, **message.header}, message.body)
                sent = True
        followed = [job for job in followed if not job.is_done]
        pause = 0.0 if sent else min(max(pause * 1.3, _SHORTEST_PAUSE), _LONGEST_PAUSE)
    request.answer({"done": True})


class _FollowedJob:
    def __init__(self, jobs: Optional[int], asked: object, *, wait: bool, output: bool) -> None:
        fields = asked if isinstance(asked, dict) else {}
        self.job_id = str(fields.get("id"))
        self.is_done = False
        self._offsets: Dict[str, int] = {}
        self._paths: Dict[str, str] = {}
        self._limits: Dict[str, int] = {}
        self._wait = wait
        self._output = output
        self._next_search = 0.0
        self._next_judge = 0.0
        self._ended = False
        self._folder: Optional[int] = None
        if jobs is not None and is_job_id(self.job_id):
            self._offsets = _checked_offsets(fields.get("offsets"))
            self._folder = _open(self.job_id, jobs)

    def advance(self) -> Iterator[_Message]:
        """Send at most one piece of every stream; the status when all of it is sent and the job has ended."""
        if self._folder is None:
            self.is_done = True
            yield _Message({"error": "there is no such job on this server"})
            return
        # Looked at before the last read: what is written before the end is read after this.
        self._ended = self._ended or self._has_ended()
        self._search()
        sent = False
        for stream in list(self._paths):
            for message in self._read(stream):
                yield message
                sent = True
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
        standing = self._judge()
        return isinstance(standing, str) or standing.state not in {"running", "starting", "elsewhere"}

    def _judge(self) -> Union[Standing, str]:
        assert self._folder is not None
        try:
            return states.judge(self._folder, self.job_id, states.look())
        except (RecordError, OSError) as error:
            return str(error)

    def _search(self) -> None:
        assert self._folder is not None
        if not self._output:
            return
        if self._paths and not self._ended and time.monotonic() < self._next_search:
            return
        known = set(self._paths.values())
        for stream, path in find_streams(self._folder).items():
            if path not in known:
                # A file keeps the name under which it was first seen.
                self._paths.setdefault(stream, path)
        self._next_search = time.monotonic() + _SEARCH_SECONDS

    def _read(self, stream: str) -> List[_Message]:
        assert self._folder is not None
        size = size_of(self._folder, self._paths[stream])
        offset = self._offsets.get(stream, 0)
        if size is None or size == offset:
            return []
        if size < offset:
            self._offsets[stream] = 0
            return [_Message({"stream": stream, "reset": True})]
        if not self._wait:
            # A file that grows faster than it is sent would never end.
            size = min(size, self._limits.setdefault(stream, size))
        skipped, body = _read_piece(self._folder, self._paths[stream], offset, size)
        self._offsets[stream] = offset + skipped + len(body)
        messages = [_Message({"stream": stream, "offset": offset + skipped, "skipped": skipped})] if skipped else []
        if body:
            messages.append(_Message({"stream": stream, "offset": offset + skipped}, body))
        return messages

    def _status(self) -> _Message:
        standing = self._judge()
        if isinstance(standing, str):
            return _Message({"error": standing})
        assert self._folder is not None
        return _Message({"status": {**standing.as_answer(self.job_id), "sizes": stream_sizes(self._folder)}})


def _open(job_id: str, jobs: int) -> Optional[int]:
    try:
        return job_files.open_folder(job_id, jobs)
    except OSError:
        return None


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
