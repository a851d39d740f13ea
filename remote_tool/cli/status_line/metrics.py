"""Reads from a job's output how far it is: epoch, step, loss, rate; from the last lines only, in bounded time."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Of a long line the end counts, and of many lines the last: whatever a pattern is, it reads no more.
LONGEST_LINE = 200
MOST_LINES = 30
# A pattern that takes this long once is not asked again.
SLOW_SECONDS = 0.05

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf)"
_OF = r"(?:\s?(?:/|of)\s?\d+)?"
# What people print, and tqdm, Lightning, Hugging Face and the examples of PyTorch.
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
    """Whether a line is the progress bar of tqdm or Lightning, with its count."""
    return bool(_BAR.search(line[-LONGEST_LINE:]))


class StatusReader:
    """Finds the newest values in lines.

    Args:
        patterns: Of the user, by name: each with one group; they come beside the usual ones, or instead of one.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._counts_bars = "step" not in patterns
        self._patterns = {name: re.compile(text, re.IGNORECASE) for name, text in {**PATTERNS, **patterns}.items()}

    def read(self, lines: Iterable[str], *, has_bar: bool = False) -> dict[str, str]:
        """Return the newest value of each name; a name that no line has is not there.

        While there is a progress bar, that alone says which step it is, and no text that mentions one.
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
    """How fast a count grows, as it was seen, and how long the rest takes.

    Attributes:
        done: Steps, over all epochs when these are known; None before the first.
        total: How many there will be; None when it is not known.
    """

    # What was printed before we looked comes at once, and says nothing about the speed.
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
        """Take in the newest values."""
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
        """Counts per second; None when it is not known yet."""
        if not self._samples:
            return None
        (first, low), (last, high) = self._samples[0], self._samples[-1]
        return (high - low) / (last - first) if last - first >= self.least_seconds and high > low else None

    def seconds_left(self, now: float) -> float | None:
        """Return how long the rest takes; None when it is not known."""
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
    """Read ``120/1000`` or ``120``."""
    match = _COUNT.fullmatch(text)
    if match is None:
        return None, None
    return float(match[1]), float(match[2]) if match[2] else None


def status_text(values: Mapping[str, str], pace: Pace, now: float) -> str:
    """Return the line: what is known, in a fixed order; empty when nothing is."""
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
