"""Fetch a sync's files from another server, accepting only content with the hash that the client sent."""

from __future__ import annotations

import hashlib
import os
import select
import stat
import threading
import time
from contextlib import suppress

from remote_tool.agent.relay.link import CHANGED, COUNT, INDEX, LinkError, RelayLink, dial, read_context
from remote_tool.agent.requests import Request, is_flag, is_list, is_text
from remote_tool.protocol import relay_files
from remote_tool.protocol.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

_CONNECT_SECONDS = 5.0
_MOST_ADDRESSES = 64
_LARGEST_LIST = 512 * 1024 * 1024
_LAST_PORT = 65535
_REPORT_SECONDS = 0.5
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 18


def fetch(request: Request) -> None:
    """Answer op ``fetch`` of a sync that holds the lock: fetch the listed entries that are missing here.

    The answer reports the fetched entries as bits in hex, eight entries to a byte, the first in the lowest bit.
    """
    _end_with_the_client()
    context = read_context(request, server_side=False)
    candidates = request.get("addresses", lambda value: is_list(value) and all(is_text(each) for each in value))
    port = request.get("port", lambda value: type(value) is int and 0 < value <= _LAST_PORT)
    digest = request.get("digest", is_text)
    compare = bool(request.get("checksum", is_flag, default=False))
    folder, beside = request.synced()
    try:
        link = dial(candidates[:_MOST_ADDRESSES], port, context, _CONNECT_SECONDS)
    except LinkError as error:
        raise RequestError(str(error), hint="unreachable") from error
    receiver = _Receiver(request, folder, beside)
    try:
        receiver.bring(link, digest, compare=compare)
    except (OSError, LinkError) as error:
        receiver.problem = str(getattr(error, "strerror", None) or error)
    finally:
        link.close()
    request.answer(receiver.result())


def _end_with_the_client() -> None:
    """End this process when the client has disconnected; partial files are in a folder that the next sync empties."""
    watched = select.poll()
    # Further input is for the shell and must not be read here.
    watched.register(0, getattr(select, "POLLRDHUP", 0))

    def watch() -> None:
        watched.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Receiver:
    def __init__(self, request: Request, project: str, beside: str) -> None:
        self.problem = ""
        self._request = request
        self._project = project
        self._beside = beside
        self._brought = bytearray()
        self._bytes = 0
        self._reported_at = time.monotonic()

    def result(self) -> Dict[str, Any]:
        return {"brought": self._brought.hex(), "bytes": self._bytes, "problem": self.problem}

    def bring(self, link: RelayLink, digest: str, *, compare: bool) -> None:
        size = link.receive_count()
        if size > _LARGEST_LIST:
            raise LinkError("the list of files is too long")
        packed = link.receive(size)
        if relay_files.digest_of(packed) != digest:
            raise LinkError("its list of files is not the one of this sync")
        entries = relay_files.unpack(packed)
        self._brought = bytearray((len(entries) + 7) // 8)
        lacking = [number for number, entry in enumerate(entries) if not self._has(entry, compare=compare)]
        link.send(COUNT.pack(len(lacking)) + b"".join(INDEX.pack(number) for number in lacking))
        self._receive_all(link, entries, lacking)

    def _has(self, entry: relay_files.RelayFile, *, compare: bool) -> bool:
        path = os.path.join(os.fsencode(self._project), entry.name)
        try:
            found = os.lstat(path)
        except OSError:
            return False
        # A file system or an old rsync may have kept whole seconds only.
        kept = found.st_mtime_ns in (entry.modified, entry.modified // 10**9 * 10**9)
        same = kept and found.st_size == entry.size
        if not stat.S_ISREG(found.st_mode) or not same:
            return False
        return not compare or self._hash(entry) == entry.sha256

    def _hash(self, entry: relay_files.RelayFile) -> bytes:
        try:
            descriptor, _ = relay_files.open_file(self._project, entry.name)
        except OSError:
            return b""
        digest = hashlib.sha256()
        with os.fdopen(descriptor, "rb") as stream:
            for data in iter(lambda: stream.read(_CHUNK), b""):
                digest.update(data)
        return digest.hexdigest().encode("ascii")

    def _receive_all(self, link: RelayLink, entries: List[relay_files.RelayFile], lacking: List[int]) -> None:
        if not lacking:
            return
        os.makedirs(self._beside, 0o700, exist_ok=True)
        folder = os.open(self._beside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for number in lacking:
                size = link.receive_count()
                if size == CHANGED:
                    continue
                if size != entries[number].size:
                    raise LinkError("it sent a file of another size")
                if self._receive_file(link, folder, entries[number]):
                    self._brought[number // 8] |= 1 << number % 8
                    self._bytes += size
                self._report_progress()
        finally:
            os.close(folder)

    def _receive_file(self, link: RelayLink, folder: int, entry: relay_files.RelayFile) -> bool:
        """Receive one file; return whether it is in place now. rsync sends the rest, or reports why not."""
        name = f"relay.{os.getpid()}"
        descriptor = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                digest = hashlib.sha256()
                left = entry.size
                while left:
                    data = link.receive_some(left)
                    digest.update(data)
                    stream.write(data)
                    left -= len(data)
                    self._report_progress()
                stream.flush()
                os.fchmod(stream.fileno(), entry.mode & 0o777)
                os.utime(stream.fileno(), ns=(entry.modified, entry.modified))
            if digest.hexdigest().encode("ascii") != entry.sha256:
                return False
            return self._place(folder, name, entry.name)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)

    def _place(self, folder: int, name: str, target: bytes) -> bool:
        try:
            parent = relay_files.open_parent(self._project, target, make=True)
        except OSError:
            return False
        try:
            os.rename(name, os.path.basename(target), src_dir_fd=folder, dst_dir_fd=parent)
        except OSError:
            return False
        finally:
            os.close(parent)
        return True

    def _report_progress(self) -> None:
        """Report progress now and then: the client's timeout restarts with each message."""
        if time.monotonic() - self._reported_at > _REPORT_SECONDS:
            self._reported_at = time.monotonic()
            self._request.answer({"received": self._bytes})
