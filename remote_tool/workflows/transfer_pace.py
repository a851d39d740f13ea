"""Describe the progress of a transfer: percentage, rate, and remaining time."""

from __future__ import annotations

import time
from collections import deque

from remote_tool.readable import readable_size

MINUTE, HOUR = 60, 3600
# The rate is that of the last seconds; it is not reported before one second has passed.
WINDOW_SECONDS = 10.0
LEAST_SECONDS = 1.0


class TransferPace:
    """The progress of a transfer, from which its rate follows."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def describe(self, done: int, total: int) -> str:
        """Describe the progress; a total of 0 means that it is unknown."""
        rate = self._rate(done)
        parts = [f"{min(100, 100 * done // total)} % of {readable_size(total)}" if total else readable_size(done)]
        if rate:
            parts.append(f"{readable_size(rate)}/s")
        if rate and total > done:
            parts.append(f"{_readable_time((total - done) / rate)} left")
        return ", ".join(parts)

    def _rate(self, done: int) -> float:
        """Return bytes per second; 0 if unknown."""
        now, samples = time.monotonic(), self._samples
        if samples and done < samples[-1][1]:
            samples.clear()  # restarted
        samples.append((now, done))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()
        began, before = samples[0]
        return (done - before) / (now - began) if now - began >= LEAST_SECONDS else 0.0


def _readable_time(seconds: float) -> str:
    """50 -> 50 s, 200 -> 3 min, 4000 -> 1 h 6 min."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min"
    return f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:.0f} min"
