"""Send files of the project, each resuming at the client's offset, and report whether it changed meanwhile."""

from __future__ import annotations

import hashlib
import os

from remote_tool.agent.artifacts.places import Places
from remote_tool.agent.requests import Request, is_list
from remote_tool.protocol.sparse_files import read_stored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

CHUNK = 512 * 1024
# While the client's part is compared, progress is reported after this many bytes.
_TELL_EVERY = 64 * 1024 * 1024


def send(request: Request) -> None:
    """Answer op ``send``: send all files in the order of the request.

    For each file: ``begin`` with its identity and the offset of the first byte, its bytes with their offsets,
    and ``end``: ``whole``, ``changed`` while being read, ``grew`` beyond the limit, or why it cannot be read.
    """
    folders = request.folders()
    asked = request.get("files", is_list)
    places = Places(folders)
    for number, each in enumerate(asked):
        _Sending(request, number, each if isinstance(each, dict) else {}).send_from(places)
    request.answer({"done": True})


class _Sending:
    """A file being sent."""

    def __init__(self, request: Request, number: int, asked: Dict[str, Any]) -> None:
        self._request = request
        self._number = number
        self._asked = asked

    def send_from(self, places: Places) -> None:
        path = self._asked.get("path")
        if not _is_inside(path):
            self._answer(end="is not a path in the project")
            return
        try:
            file = places.of(self._asked.get("job")).open_file(str(path))
        except OSError as error:
            self._answer(end=error.strerror)
            return
        try:
            self._send(file)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            self._answer(end=error.strerror)
        finally:
            os.close(file)

    def _send(self, file: int) -> None:
        before = os.fstat(file)
        most = self._asked.get("most")
        if type(most) is int and before.st_size > most:
            self._answer(end="grew")
            return
        offset = self._offset(file, before)
        self._answer(begin=_stamp(before), offset=offset)
        while offset < before.st_size:
            start, body = read_stored(file, offset, before.st_size, CHUNK)
            if body:
                self._answer(body, offset=start)
            elif start < before.st_size:
                break  # it was truncated
            offset = start + len(body)
        self._answer(end="whole" if _stamp(os.fstat(file)) == _stamp(before) else "changed")

    def _offset(self, file: int, status: os.stat_result) -> int:
        """Return the offset to resume from: the client's size, if its part is a prefix of this very file."""
        have = self._asked.get("have")
        if self._asked.get("stamp") != _stamp(status) or type(have) is not int or not 0 < have <= status.st_size:
            return 0
        return have if self._digest(file, have) == self._asked.get("sha256") else 0

    def _digest(self, file: int, size: int) -> Optional[str]:
        digest = hashlib.sha256()
        done = 0
        while done < size:
            data = os.pread(file, min(CHUNK, size - done), done)
            if not data:
                return None
            digest.update(data)
            done += len(data)
            if done % _TELL_EVERY == 0:
                self._answer(checked=done)
        return digest.hexdigest()

    def _answer(self, body: bytes = b"", **header: Any) -> None:  # noqa: ANN401 - whatever JSON has
        self._request.answer({"file": self._number, **header}, body)


def _stamp(status: os.stat_result) -> List[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _is_inside(path: object) -> bool:
    return isinstance(path, str) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
