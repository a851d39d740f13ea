"""How large rooms may be: modules in a folder, lines in a module."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MOST_MODULES = 20
MOST_LINES = 400
# A module, by its path in the package, that may be longer, and why it is not divided.
LONGER: dict[str, str] = {
    "remote_tool/transport/ssh/channel.py": "one session, whose buffers and timers change together",
}


class Sizes(NamedTuple):
    """The sizes of a package, by paths in it."""

    lines: dict[str, int]
    modules: Counter[str]
    code_lines: int

    def __str__(self) -> str:
        folder, count = max(self.modules.items(), key=lambda each: each[1])
        longest, lines = max(self.lines.items(), key=lambda each: each[1])
        total = sum(self.lines.values())
        return (
            f"largest folder: {folder}/, {count} modules (at most {MOST_MODULES})\n"
            f"longest module: {longest}, {lines} lines (at most {MOST_LINES})\n"
            f"in all: {len(self.lines)} modules, {total:,} lines, {self.code_lines:,} without blank lines and comments"
        )


def measure(package: Path) -> Sizes:
    """Measure a package; ``__init__.py`` is not counted as a module of its folder."""
    sources = {path.relative_to(package.parent).as_posix(): path.read_text() for path in sorted(package.rglob("*.py"))}
    modules = Counter(name.rpartition("/")[0] for name in sources if not name.endswith("/__init__.py"))
    lines = {name: len(source.splitlines()) for name, source in sources.items()}
    return Sizes(lines, modules, sum(is_code(line) for source in sources.values() for line in source.splitlines()))


def is_code(line: str) -> bool:
    """Whether a line is more than space and a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def too_large(sizes: Sizes, longer: Mapping[str, str] | None = None) -> Iterator[str]:
    """What breaks a limit, and each exception that nothing needs; by default, the exceptions are those above."""
    longer = LONGER if longer is None else longer
    for folder, count in sorted(sizes.modules.items()):
        if count > MOST_MODULES:
            yield f"{folder}/: {count} modules; at most {MOST_MODULES}: make rooms of what belongs together"
    for module, lines in sizes.lines.items():
        if lines > MOST_LINES and module not in longer:
            yield f"{module}: {lines} lines; at most {MOST_LINES}: divide it along what it does"
    for module in longer:
        if sizes.lines.get(module, 0) <= MOST_LINES:
            yield f"{module}: needs no exception any more: remove it from LONGER in tests/house/sizes.py"
