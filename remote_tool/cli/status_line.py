"""A line with training progress at the bottom of the terminal, while jobs are followed.

It is a module of its own because it loads Rich, which a command in a pipe does without.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rich.cells import set_cell_size

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import one_line
from remote_tool.jobs.status_values import PATTERNS, StatusReader, is_bar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from remote_tool.workflows.jobs.follow import Chunk

# Seconds between updates; output in between is batched.
UPDATE_SECONDS = 0.15
KEPT_BYTES = 4096
SMALLEST_WIDTH, SMALLEST_HEIGHT = 20, 5
_END_OF_LINE = re.compile(r"[\r\n]+")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)(?:\s?(?:/|of)\s?(\d+))?")


class LiveStatus:
    """Reads progress from the output that is shown, and draws the line a few times per second, in its own thread.

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
        self._former_handler: object = None

    def __enter__(self) -> Self:
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            self._former_handler = signal.signal(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        # It may be writing to a suspended terminal.
        self._thread.join(1.0)
        if self._former_handler is not None:
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
        while not self._ended.wait(UPDATE_SECONDS):
            text = self._update(time.monotonic())
            if text:
                self._line.show(text)

    def _update(self, now: float) -> str:
        with self._lock:
            updates = [(self._sources[key], self._sources[key].lines()) for key in self._changed]
            # An incomplete line is checked once more, even without new output.
            self._changed = {key for key in self._changed if self._sources[key].is_pending}
        for source, lines in updates:
            source.values |= self._reader.read(lines, has_bar=source.has_bar)
            source.pace.note(source.values, now)
        return self._text(now)

    def _text(self, now: float) -> str:
        with_values = sorted(
            (source for source in list(self._sources.values()) if source.values), key=lambda source: source.order
        )
        if not with_values:
            return ""
        first = with_values[0]
        label = f"{first.label}  " if first.label else ""
        return one_line(label + status_text(first.values, first.pace, now) + _slowest(first, with_values))

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Suspend upon Ctrl-Z, without leaving the line behind."""
        self._line.hide()
        os.kill(os.getpid(), signal.SIGSTOP)


class Pace:
    """The observed rate of a count, and the remaining time.

    Attributes:
        done: Steps, over all epochs if known; None before the first.
        total: Total steps; None if unknown.
    """

    # Output from before the start arrives at once, and says nothing about the rate.
    settle = 1.5
    least_seconds = 2.0
    window = 60.0

    def __init__(self, now: float) -> None:
        self.done: float | None = None
        self.total: float | None = None
        self._began = now
        self._counts_from = 1
        self._samples: deque[tuple[float, float]] = deque(maxlen=500)

    def note(self, values: Mapping[str, str], now: float) -> None:
        """Add the newest values."""
        done, total = self._position(values)
        if done is None:
            return
        if total != self.total or (self.done is not None and done < self.done):
            self._samples.clear()
        is_new = done != self.done
        self.done, self.total = done, total
        if is_new and now - self._began >= self.settle:
            self._samples.append((now, done))
        while self._samples and now - self._samples[0][0] > self.window and len(self._samples) > 2:  # noqa: PLR2004 - a speed needs two
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """Counts per second; None if unknown."""
        if not self._samples:
            return None
        (first, low), (last, high) = self._samples[0], self._samples[-1]
        return (high - low) / (last - first) if last - first >= self.least_seconds and high > low else None

    def seconds_left(self, now: float) -> float | None:
        """Return the remaining seconds; None if unknown."""
        if self.rate is None or self.total is None or self.done is None:
            return None
        return max(0.0, (self.total - self.done) / self.rate - (now - self._samples[-1][0]))

    def _position(self, values: Mapping[str, str]) -> tuple[float | None, float | None]:
        step, steps = _count(values.get("step", ""))
        epoch, epochs = _count(values.get("epoch", ""))
        if epoch == 0:
            self._counts_from = 0
        if step is None:
            return (epoch, epochs) if epochs else (None, None)
        if steps and epoch is not None and epochs and step <= steps:
            return max(0.0, epoch - self._counts_from) * steps + step, epochs * steps
        return step, steps


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
        return any(is_bar(line) for line in self.unfinished.values())

    def lines(self) -> list[str]:
        """Return the last lines; an incomplete one only if it has not grown since the last update."""
        complete = []
        self.is_pending = False
        for stream, tail in self.tails.items():
            *lines, rest = _END_OF_LINE.split(tail.decode(errors="replace"))
            if rest and self.unfinished.get(stream) == rest:
                lines.append(rest)
            elif rest:
                self.is_pending = True
            self.unfinished[stream] = rest
            complete += lines
        return complete


class BottomLine:
    """Excludes the last row of a terminal from scrolling.

    Other output needs no change: it goes to the cursor, in the rows above.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._size: os.terminal_size | None = None
        self._text = ""

    def show(self, text: str) -> None:
        """Draw the line, if it or the terminal's size has changed."""
        try:
            size = os.get_terminal_size(self._stream)
        except OSError:
            return
        if size.columns < SMALLEST_WIDTH or size.lines < SMALLEST_HEIGHT:
            self.hide()
            return
        if (size, text) == (self._size, self._text):
            return
        move = "" if size == self._size else self._release_row(size) + _reserve_row(size)
        self._size, self._text = size, text
        # In the last column the cursor may be in the pending-wrap state.
        cut = set_cell_size(text, size.columns - 1)
        styled = f"\x1b[7m{cut}\x1b[0m" if streams.has_color(self._stream) else cut.rstrip()
        streams.write_text(self._stream, f"{move}\x1b7\x1b[{size.lines};1H\x1b[0m\x1b[K{styled}\x1b8")

    def hide(self) -> None:
        """Clear and release the row."""
        if self._size is not None:
            streams.write_text(self._stream, self._release_row(self._size))
            self._size = None

    def _release_row(self, size: os.terminal_size) -> str:
        """Restore full scrolling and clear the row, which does not exist anymore if the terminal has shrunk."""
        if self._size is None:
            return ""
        row = min(self._size.lines, size.lines)
        return f"\x1b7\x1b[r\x1b[{row};1H\x1b[0m\x1b[2K\x1b8"


def _reserve_row(size: os.terminal_size) -> str:
    # Ensure a row below the cursor: down, which scrolls if there is none, then up. Setting the scrolling region
    # moves the cursor, so its position is saved.
    return f"\x1bD\x1b[A\x1b7\x1b[1;{size.lines - 1}r\x1b8"


def status_text(values: Mapping[str, str], pace: Pace, now: float) -> str:
    """Return the line: known values in a fixed order; empty without any."""
    parts = [f"{name} {values[name]}" for name in ("epoch", "step", "loss", "lr") if name in values]
    parts += [f"{name} {value}" for name, value in values.items() if name not in PATTERNS]
    if "rate" in values:
        parts.append(values["rate"])
    elif pace.rate is not None and "step" in values:
        parts.append(f"{pace.rate:.3g} steps/s")
    seconds = pace.seconds_left(now)
    if seconds is not None:
        parts.append(f"{duration(seconds)} left")
    elif "left" in values:
        parts.append(f"{values['left']} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Return ``12s``, ``2m 49s``, ``1h 03m`` or ``3d 02h``."""
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d {hours % 24:02}h"
    if hours:
        return f"{hours}h {minutes % 60:02}m"
    return f"{minutes}m {whole % 60:02}s" if minutes else f"{whole}s"


def _count(text: str) -> tuple[float | None, float | None]:
    """Parse ``120/1000`` or ``120``."""
    match = _COUNT.fullmatch(text)
    if match is None:
        return None, None
    return float(match[1]), float(match[2]) if match[2] else None


def _slowest(first: _Source, sources: list[_Source]) -> str:
    """Return the name of the rank that is furthest behind the one on the line."""
    counted = [(source.pace.done, source.label) for source in sources if source.pace.done is not None]
    done, label = min(counted, default=(None, ""))
    if done is None or first.pace.done is None or done >= first.pace.done:
        return ""
    return f"  slowest {label} {first.pace.done - done:.0f} behind"
