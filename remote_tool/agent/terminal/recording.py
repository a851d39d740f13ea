"""Record the output of a terminal: all of it in the log, and the end of it for clients that attach."""

from __future__ import annotations

from remote_tool.protocol.job_folder import write_all
from remote_tool.protocol.terminal import ALL_OFF, ScreenModes, without_questions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

# Shown to who attaches.
_HISTORY = 64 * 1024
_CLEAR = b"\x1b[H\x1b[2J"


class Recording:
    """The output of a job.

    Args:
        log: Descriptor that gets all output.

    Attributes:
        note: Why output is missing in the log; empty when all is there.
    """

    def __init__(self, log: int) -> None:
        self.note = ""
        self._log = log
        self._history = bytearray()
        self._total = 0
        self._modes = ScreenModes()

    def add(self, output: bytes) -> None:
        """Write output to the log, and remember it for a while."""
        try:
            write_all(self._log, output)
        except OSError as error:
            self.note = f"some of its output could not be written: {error.strerror}"
        self._modes.feed(output)
        self._total += len(output)
        self._history += output
        if len(self._history) > 2 * _HISTORY:
            del self._history[:-_HISTORY]

    @property
    def is_full_screen(self) -> bool:
        """Return whether a program such as an editor has the whole screen, and can draw it again."""
        return self._modes.is_full_screen

    def screen(self, seen: int) -> Tuple[Dict[str, Any], bytes]:
        """Return the frame that brings a client's screen near to the program's.

        Args:
            seen: Bytes of output that the client had before its connection was lost; -1: it is new.
        """
        missed = self._total - seen
        if seen >= 0 and not self.is_full_screen and 0 <= missed <= len(self._history):
            return {"stream": 1}, bytes(self._history[len(self._history) - missed :])
        modes = (ALL_OFF if seen >= 0 else b"") + self._modes.switch_on()
        if self.is_full_screen:
            return {"stream": 1, "at": self._total}, modes + _CLEAR
        start = 0 if len(self._history) < _HISTORY else self._history.find(b"\n", -_HISTORY) + 1
        return {"stream": 1, "at": self._total}, modes + without_questions(bytes(self._history[start:]))
