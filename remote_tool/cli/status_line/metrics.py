"""Extract progress from a job's output: epoch, step, loss, rate; from the last lines only, in bounded time."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Only the end of a long line and the last lines are read, which bounds the time of any pattern.
LONGEST_LINE = 200
MOST_LINES = 30
# A pattern that is this slow once is not used again.
SLOW_SECONDS = 0.05

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf)"
_OF = r"(?:\s?(?:/|of)\s?\d+)?"
# Formats of tqdm, Lightning, Hugging Face and PyTorch's examples.
PATTERNS = {
    "epoch": rf"\bepochs?\W{{0,4}}(\d+(?:\.\d+)?{_OF})",
    "step": r"(?:\b(?:global_)?(?:step|iter|iteration|batch)s?\W{0,4}|\|\s?(?=\d+/\d+ \[)|\]\[\s*(?=\d+/\d+\]))"
    rf"(\d+{_OF})",
    "loss": r"(?<![\w.])(?<!val )(?<!eval )(?<!test )(?<!valid )(?<!validation )"
    rf"(?:train(?:ing)?[ _/.-])?loss\W{{0,5}}({_NUMBER})",
    "lr": rf"\b(?:lr|learning[_ ]rate)\W{{0,4}}({_NUMBER})",
    "rate": r"(\d[\d,.]*\s?(?:it|iters?|steps?|batch(?:es)?|samples?|imgs?|images?|tok|tokens?|examples?)/s"
    r"|\d[\d,.]*\s?s/(?:it|iter|step|batch))\b",
    "left": r"\[\d[\d:]*<((?:\d+:)?\d+:\d\d)\b",
}
_BAR = re.compile(r"\|\s?\d+/\d+ \[|\]\[\s*\d+/\d+\]")
_COLOUR = re.compile(r"\x1b\[[0-9;:?]{0,40}[A-Za-z]")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)(?:\s?(?:/|of)\s?(\d+))?")


def is_bar(line: str) -> bool:
    """Return whether a line is a progress bar of tqdm or Lightning with its count."""
    return bool(_BAR.search(line[-LONGEST_LINE:]))


class StatusReader:
    """Finds the newest values in lines.

    Args:
        patterns: The user's, by name, each with one group; they add to or replace the built-in ones.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._counts_bars = "step" not in patterns
        self._patterns = {name: re.compile(text, re.IGNORECASE) for name, text in {**PATTERNS, **patterns}.items()}

    def read(self, lines: Iterable[str], *, has_bar: bool = False) -> dict[str, str]:
        """Return the newest value of each name; missing names are left out.

        While there is a progress bar, only the bar gives the step, not text that mentions one.
        """
        plain = [_COLOUR.sub("", line[-2 * LONGEST_LINE :])[-LONGEST_LINE:] for line in lines][-MOST_LINES:]
        bars = [line for line in plain if is_bar(line)] if has_bar and self._counts_bars else plain
        found = {}
        for name in list(self._patterns):
            value = self._newest(name, bars if name == "step" else plain)
            if value:
                found[name] = value
        return found

    def _newest(self, name: str, lines: list[str]) -> str:
        for line in reversed(lines):
            began = time.monotonic()
            match = self._patterns[name].search(line)
            if time.monotonic() - began > SLOW_SECONDS:
                del self._patterns[name]
                return ""
            if match:
                return match[1] or ""
        return ""


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
