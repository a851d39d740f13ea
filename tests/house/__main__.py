"""Print the sizes of the package, and what breaks the rules of the house; the last step of ``make check``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.house.floors import stale_picture
from tests.house.sizes import measure, too_large
from tests.house.words import odd_comments, odd_phrases

ROOT = Path(__file__).parents[2]


def main(root: Path = ROOT) -> int:
    """Return 1 where a rule is broken."""
    sizes = measure(root / "remote_tool")
    print(sizes)  # noqa: T201 - a program of make
    broken = [*too_large(sizes), *stale_picture(root), *map(str, odd_phrases(root)), *map(str, odd_comments(root))]
    print(*broken, sep="\n", end="\n" if broken else "", file=sys.stderr)  # noqa: T201 - a program of make
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
