"""The meaning of rsync's exit statuses, in one sentence each."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError
from remote_tool.transport.sync.server_script import CANNOT_USE, CANNOT_WRITE, LOCKED, NO_RSYNC, PATIENCE
from remote_tool.transport.sync.shell import NO_ANSWER

if TYPE_CHECKING:
    from remote_tool.transport.host import Exit

SOME_NOT_SENT = 23
SOME_VANISHED = 24
STREAM_BROKE = 12
# Since rsync 3.5, also for a link that another user owns.
REFUSED_LINK = b"Too many levels of symbolic links"
SHOWN_LINES = 8
# The connection between the two broke, which may not happen again; any other cause would persist.
WORTH_ANOTHER_TRY = frozenset({10, STREAM_BROKE, 30, 35})
FIRST_SIGNAL = 128  # a shell reports 128 + N for a program that signal N ended

# rsync(1), "EXIT VALUES".
CAUSES = {
    1: "rsync did not understand its options",
    2: "the local and the remote rsync do not understand each other: one is too old, or a startup file prints text",
    CANNOT_USE: "the project's folder on the server cannot be used",
    4: "the server's rsync does not support the requested action",
    5: "the server's rsync could not start",
    6: "rsync could not write its log",
    10: "the connection between the two rsyncs broke",
    CANNOT_WRITE: "a file could not be written: is the server's disk full?",
    STREAM_BROKE: "the server's rsync exited too early",
    13: "rsync reported an error",
    14: "the two rsyncs could not talk to each other",
    19: "rsync was stopped by a signal",
    20: "rsync was interrupted",
    21: "rsync lost a program that it was waiting for",
    22: "out of memory",
    SOME_NOT_SENT: "some files could not be sent",
    SOME_VANISHED: "some local files vanished while they were being sent",
    25: "too many files would have been removed",
    30: "no data arrived for too long",
    35: "the server's rsync did not answer in time",
    124: "the server could not run rsync",
    125: "the server's rsync was killed",
    126: "the server's rsync cannot be run",
    LOCKED: f"another sync has been running there for {PATIENCE // 60} minutes",
    NO_RSYNC: "rsync is not installed on the server",
    NO_ANSWER: "the connection to the server was closed",
}


class BrokenSyncError(SyncError):
    """The connection between the two rsyncs broke; another try may work."""


@dataclass(frozen=True)
class Ending:
    """How both rsyncs ended.

    Attributes:
        server: The server's name.
        local: The exit status of the local rsync; negative for a signal.
        remote: The end of the server's rsync; None if it never started.
        errors: The stderr of the local rsync, which also relays messages of the other one.
        remote_errors: The stderr of the server's rsync.
    """

    server: str
    local: int
    remote: Exit | None
    errors: bytes
    remote_errors: bytes

    @property
    def status(self) -> int:
        """The status that tells the cause: the local rsync exits with 12 whatever ended the other one."""
        remote = self.remote.status if self.remote is not None else None
        return remote if remote not in {None, 0, STREAM_BROKE} else self.local

    def failure(self) -> SyncError | None:
        """Return the error; None if the sync succeeded."""
        if self.status in {0, SOME_VANISHED}:
            return None
        text = (self.errors + self.remote_errors).decode(errors="replace")
        tail = "\n".join([line for line in text.splitlines() if line.strip()][-SHOWN_LINES:])
        message = f"{self.server}: the project was not sent: {self._cause()}"
        kind = BrokenSyncError if self.status in WORTH_ANOTHER_TRY else SyncError
        return kind(message + (f"\n{tail}" if tail else ""), hint=self._hint(), server=self.server)

    def _cause(self) -> str:
        if self._has_refused_link:
            return "a folder there is a link that rsync does not follow"
        if self.remote is not None and self.remote.signal:
            return f"the server's rsync was killed by SIG{self.remote.signal}"
        if self.status - FIRST_SIGNAL in set(signal.Signals):
            return f"the server's rsync was killed by {signal.Signals(self.status - FIRST_SIGNAL).name}"
        if self.local < 0:
            return f"rsync was killed by signal {-self.local}"
        return CAUSES.get(self.status, f"rsync ended with status {self.status}")

    @property
    def _has_refused_link(self) -> bool:
        return REFUSED_LINK in self.errors + self.remote_errors

    def _hint(self) -> str:
        if self._has_refused_link:
            command = f"remote-tool run --server {self.server} --cmd 'find . -type l -ls'"
            return f"rsync follows only links of your own account and of root: {command}"
        special = {
            NO_RSYNC: f"On {self.server}: sudo apt-get install rsync  (or: conda install -c conda-forge rsync)",
            CANNOT_WRITE: f"remote-tool run --server {self.server} --cmd 'df -h .'",
            SOME_NOT_SENT: "The lines above name the files: check their permissions, here and on the server",
        }
        return special.get(self.status, f"remote-tool rsync --show-output --server {self.server}")
