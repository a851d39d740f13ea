"""Read progress from a job's output: epoch, step, loss, rate; from the last lines only, in bounded time."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from remote_tool.protocol.limits import MOST_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Only the end of a long line and the last lines are read, which bounds the time of any pattern.
LONGEST_LINE = 200
MOST_LINES = 30
LONGEST_SHOWN = 80
# A pattern that takes this long once is not used again.
SLOW_SECONDS = 0.05

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf)"
_OF = r"(?:\s?(?:/|of)\s?\d+)?"
# Formats of tqdm, Lightning, Hugging Face and PyTorch's examples.
PATTERNS = {
    "epoch": rf"\bepochs?\W{{0,4}}(\d+(?:\.\d+)?{_OF})",
    "step": r"(?:\b(?:global_)?(?:step|iter|iteration|batch)s?\W{0,4}|\|\s?(?=\d+/\d+ \[)|\]\[\s*(?=\d+/\d+\]))"
    rf"(\d+{_OF})",
    "loss": r"(?<![\w.])(?<!val )(?<!eval )(?<!test )(?<!valid )(?<!validation )"
    rf"(?:train(?:ing)?[ _/.-])?loss\W{{0,5}}?({NUMBER})",
    "lr": rf"\b(?:lr|learning[_ ]rate)\W{{0,4}}({NUMBER})",
    "rate": r"(\d[\d,.]*\s?(?:it|iters?|steps?|batch(?:es)?|samples?|imgs?|images?|tok|tokens?|examples?)/s"
    r"|\d[\d,.]*\s?s/(?:it|iter|step|batch))\b",
    "left": r"\[\d[\d:]*<((?:\d+:)?\d+:\d\d)\b",
}
_BAR = re.compile(r"\|\s?\d+/\d+ \[|\]\[\s*\d+/\d+\]")
_END_OF_LINE = re.compile(r"[\r\n]+")
_COLOR = re.compile(r"\x1b\[[0-9;:?]{0,40}[A-Za-z]")


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
        plain = [_COLOR.sub("", line[-2 * LONGEST_LINE :])[-LONGEST_LINE:] for line in lines][-MOST_LINES:]
        bars = [line for line in plain if is_bar(line)] if has_bar and self._counts_bars else plain
        values = {}
        for name in list(self._patterns):
            value = self._newest(name, bars if name == "step" else plain)
            if value:
                values[name] = value
        return values

    def _newest(self, name: str, lines: list[str]) -> str:
        for line in reversed(lines):
            # Processor time: the time of other programs on a busy machine does not count.
            began = time.thread_time()
            match = self._patterns[name].search(line)
            if time.thread_time() - began > SLOW_SECONDS:
                del self._patterns[name]
                return ""
            if match:
                return match[1] or ""
        return ""


def last_values(tails: Sequence[str], patterns: Mapping[str, str], *, has_ended: bool) -> tuple[str, ...]:
    """Return the newest values in the ends of a job's output, like ``loss=0.21``.

    Args:
        tails: The last bytes of each output file, as text.
        patterns: The user's.
        has_ended: Whether a last line without a line break is complete.
    """
    lines: list[str] = []
    for tail in tails:
        # The last line may still be incomplete.
        lines += _END_OF_LINE.split(tail)[: None if has_ended else -1]
    values = StatusReader(patterns).read(lines)
    return tuple(f"{name}={value[:LONGEST_SHOWN]}" for name, value in list(values.items())[:MOST_VALUES])
