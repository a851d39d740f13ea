"""One client of a terminal: its messages, and the output that it has yet to get."""

from __future__ import annotations

import os
import time

from remote_tool.protocol import framing
from remote_tool.protocol.terminal import BACKLOG_LIMIT, MessageReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

_PIECE = 64 * 1024
# A client that takes nothing for this long, while more than the limit waits for it, is dropped.
_LONGEST_STALL = 10.0


class Client:
    """A client, reached through two descriptors that never block.

    Attributes:
        source: It sends here.
        target: It gets output here.
        nonce: Marks its frames; empty until it is known.
        window: Rows and columns of its window; None until they are known.
        seen: Bytes of output that it had before its connection was lost; -1 for a new client.
        has_left: Whether it has left, or was dropped.
        misses: Whether it was too far behind, and gets no output until it has caught up.
    """

    def __init__(self, source: int, target: int, close: Callable[[], None], nonce: str = "") -> None:
        self.source = source
        self.target = target
        self.nonce = nonce
        self.window: Optional[Tuple[int, int]] = None
        self.seen = -1
        self.has_left = False
        self.misses = False
        self._close = close
        self._reader = MessageReader()
        self._waiting = bytearray()
        self._moved_at = time.monotonic()
        for descriptor in (source, target):
            os.set_blocking(descriptor, False)

    @property
    def backlog(self) -> int:
        """Return how many bytes it has yet to take."""
        return len(self._waiting)

    @property
    def is_stuck(self) -> bool:
        """Return whether it has taken nothing for long."""
        return bool(self._waiting) and time.monotonic() - self._moved_at > _LONGEST_STALL

    def receive(self) -> List[Tuple[bytes, bytes]]:
        """Return the messages that have arrived."""
        try:
            data = os.read(self.source, _PIECE)
            self.has_left = self.has_left or not data
            return self._reader.feed(data)
        except BlockingIOError:
            return []
        except (OSError, ValueError):
            self.has_left = True
            return []

    def send(self, header: Dict[str, Any], body: bytes = b"") -> None:
        """Add a frame to those that it gets."""
        if not self._waiting:
            self._moved_at = time.monotonic()
        self._waiting += framing.encode(self.nonce, header, body)
        self.flush()

    def show(self, header: Dict[str, Any], output: bytes) -> None:
        """Send output of a job, unless it is too far behind: the log has it."""
        if self.nonce and not self.misses:
            self.send(header, output)
            self.misses = len(self._waiting) > BACKLOG_LIMIT

    def flush(self) -> None:
        """Send as much as it takes now."""
        try:
            while self._waiting:
                count = os.write(self.target, self._waiting[:_PIECE])
                del self._waiting[:count]
                self._moved_at = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            self.has_left = True

    def close(self) -> None:
        """Close its descriptors."""
        self._close()
