"""A status line with training progress while jobs are followed on a terminal."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.status_line.bottom_line import BottomLine
from remote_tool.cli.status_line.metrics import Pace, status_text
from remote_tool.jobs.status_values import StatusReader, is_bar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from remote_tool.workflows.jobs.follow import Chunk

# Seconds between updates; output in between is batched.
LOOK_SECONDS = 0.15
KEPT_BYTES = 4096
_END_OF_LINE = re.compile(r"[\r\n]+")


@dataclass
class _Source:
    """One rank of a job, or a job."""

    order: tuple[bool, int, str]
    label: str
    pace: Pace
    tails: dict[str, bytes] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    is_pending: bool = False

    @property
    def has_bar(self) -> bool:
        """Return whether the last, incomplete line is a progress bar."""
        return any(is_bar(rest) for rest in self.unfinished.values())

    def lines(self) -> list[str]:
        """Return the last lines; an incomplete one only if it has not grown since the last update."""
        found = []
        self.is_pending = False
        for stream, tail in self.tails.items():
            *lines, rest = _END_OF_LINE.split(tail.decode(errors="replace"))
            if rest and self.unfinished.get(stream) == rest:
                lines.append(rest)
            elif rest:
                self.is_pending = True
            self.unfinished[stream] = rest
            found += lines
        return found


class LiveStatus:
    """Reads the shown output, and draws the line a few times per second in its own thread.

    Args:
        patterns: The user's.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._reader = StatusReader(patterns)
        self._line = BottomLine(streams.ERR)
        self._sources: dict[tuple[str, int | None], _Source] = {}
        self._changed: set[tuple[str, int | None]] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw_until_end, daemon=True)
        self._before: object = None

    def __enter__(self) -> Self:
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTSTP, self._pause)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        # It may be writing to a suspended terminal.
        self._thread.join(1.0)
        if self._before is not None:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._line.hide()

    def note(self, chunk: Chunk) -> None:
        """Keep the end of a job's output for the next update."""
        key = (chunk.job.id, chunk.rank)
        source = self._sources.get(key)
        if source is None:
            order = (not chunk.job.is_master, -1 if chunk.rank is None else chunk.rank, chunk.label)
            source = _Source(order, chunk.label, Pace(time.monotonic()))
            self._sources[key] = source
        with self._lock:
            kept = source.tails.get(chunk.stream, b"")
            source.tails[chunk.stream] = (kept + chunk.data[-KEPT_BYTES:])[-KEPT_BYTES:]
            self._changed.add(key)

    def _draw_until_end(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            text = self._update(time.monotonic())
            if text:
                self._line.show(text)

    def _update(self, now: float) -> str:
        with self._lock:
            news = [(self._sources[key], self._sources[key].lines()) for key in self._changed]
            # An incomplete line is checked once more, even without new output.
            self._changed = {key for key in self._changed if self._sources[key].is_pending}
        for source, lines in news:
            source.values |= self._reader.read(lines, has_bar=source.has_bar)
            source.pace.note(source.values, now)
        return self._text(now)

    def _text(self, now: float) -> str:
        known = sorted(
            (source for source in list(self._sources.values()) if source.values), key=lambda each: each.order
        )
        if not known:
            return ""
        first = known[0]
        label = f"{first.label}  " if first.label else ""
        return one_line(label + status_text(first.values, first.pace, now) + _slowest(first, known))

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        """Suspend upon Ctrl-Z, without leaving the line behind."""
        self._line.hide()
        os.kill(os.getpid(), signal.SIGSTOP)


def _slowest(first: _Source, known: list[_Source]) -> str:
    """Return the name of the rank that is behind the shown one."""
    counted = [(source.pace.done, source.label) for source in known if source.pace.done is not None]
    done, label = min(counted, default=(None, ""))
    if done is None or first.pace.done is None or done >= first.pace.done:
        return ""
    return f"  slowest {label} {first.pace.done - done:.0f} behind"
