"""The progress of a job and the time that it still takes, for the status line."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from remote_tool.jobs.status_values import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNT = re.compile(r"(\d+(?:\.\d+)?)(?:\s?(?:/|of)\s?(\d+))?")


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


def _count(text: str) -> tuple[float | None, float | None]:
    """Parse ``120/1000`` or ``120``."""
    match = _COUNT.fullmatch(text)
    if match is None:
        return None, None
    return float(match[1]), float(match[2]) if match[2] else None


def status_text(values: Mapping[str, str], pace: Pace, now: float) -> str:
    """Return the line: known values in a fixed order; empty without any."""
    parts = [f"{name} {values[name]}" for name in ("epoch", "step", "loss", "lr") if name in values]
    parts += [f"{name} {value}" for name, value in values.items() if name not in PATTERNS]
    if "rate" in values:
        parts.append(values["rate"])
    elif pace.rate is not None and "step" in values:
        parts.append(f"{pace.rate:.3g} steps/s")
    left = pace.seconds_left(now)
    if left is not None:
        parts.append(f"{duration(left)} left")
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
