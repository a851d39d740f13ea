"""Find the line of a step's output that explains its failure."""

from __future__ import annotations

import re

# More specific ones come first; of equal ones, the last line counts.
_TELLING = tuple(
    re.compile(pattern)
    for pattern in (
        r"No space left on device|Disk quota exceeded",
        r"^cause: (?:Because|Failed to fetch)",
        r"^(?:ERROR: )?(?:No matching distribution found|Cannot install .* because)",
        r"fatal error: |: error: |^error: (?:command '.*' failed|invalid command)|not found$",
        r"^[A-Za-z_][\w.]*(?:Error|Exception|NotFound\w*)\b[^:]{0,80}: \S",
        r"^(?:ERROR|Error|error|fatal|E)[: ]",
    )
)
# pip's remarks about itself after the actual error.
_GENERAL = re.compile(
    r"subprocess-exited-with-error|metadata-generation-failed|ResolutionImpossible: for help"
    r"|Failed to build |Failed building |Could not build wheels|originates from a subprocess"
)
# uv may draw a tree, and wrap its lines.
_TREE = re.compile(r"[╰├]─▶ (?P<why>.*(?:\n {6}.*)*)")
_LABEL = re.compile(r"^(?:ERROR|Error|error|cause): ")
LONGEST_CAUSE = 300


def cause_of(output: str) -> str:
    """Return the reason in a failed step's output, on one line; empty if there is none."""
    drawn = list(_TREE.finditer(output))
    if drawn:
        return _shortened(" ".join(drawn[-1]["why"].split()))
    lines = [line.strip(" \t│|") for line in output.splitlines()]
    lines = [line for line in lines if line and not _GENERAL.search(line)]
    for pattern in _TELLING:
        found = [line for line in lines if pattern.search(line)]
        if found:
            return _shortened(_LABEL.sub("", found[-1]))
    return ""


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_CAUSE else f"{line[: LONGEST_CAUSE - 1]}…"
