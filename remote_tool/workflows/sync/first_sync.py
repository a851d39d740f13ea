"""Before the first sync: what of the project is large, or usually left out, and what keeps it here."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator
    from pathlib import Path

    from remote_tool.transport.sync.contents import Snapshot
    from remote_tool.transport.sync.entries import Entry

LARGE = 100 * 1024**2
MODEST = 10 * 1024**2
MOST_NAMED = 5
# Left out whatever their size, and where they are large.
ALWAYS = (
    *("wandb", "node_modules", "lightning_logs", "mlruns", "tb_logs", ".venv", "venv", ".conda", ".tox", ".nox"),
    *(".pixi", ".dvc", "multirun"),
)
OFTEN = ("data", "dataset", "datasets", "checkpoints", "outputs", "output", "runs", "logs", "results", "models")
# A large part of a folder: then it is what makes the folder large.
_MOST = 0.9
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_SIZES = range(100, 300)
_MOST_POINTERS = 10_000


def advice(snapshot: Snapshot, readable: Callable[[float], str], exclude_file: str) -> list[str]:
    """Return a line about what might stay here, and one about pointers of Git LFS; none where nothing stands out.

    Args:
        snapshot: What is sent.
        readable: Formats a size.
        exclude_file: Where the user excludes files of the project; empty where something else is sent, which it does
            not apply to.
    """
    found = sorted(standing_out(snapshot.entries).items(), key=lambda each: -each[1]) if exclude_file else []
    lines = []
    if found:
        named = ", ".join(f"{os.fsdecode(name)} ({readable(size)})" for name, size in found[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        patterns = "  ".join(pattern_of(os.fsdecode(name)) for name, _ in found[:MOST_NAMED])
        leave_out = f"to exclude, add to {exclude_file}, one per line: {patterns}"
        lines.append(f"this first sync sends {named}{more}; {leave_out}")
    if pointers := count_pointers(snapshot):
        files = "1 file is a pointer" if pointers == 1 else f"{pointers} files are pointers"
        lines.append(
            f"{files} of Git LFS, not the content itself; to send the content, stop this and run: git lfs pull"
        )
    return lines


def standing_out(entries: Iterable[Entry]) -> dict[bytes, int]:
    """Return the folders and files that are large or usually left out, by name, with their bytes."""
    sizes, always = Counter[bytes](), set[bytes]()
    for entry in entries:
        if entry.is_folder:
            continue
        for name in _with_outer(entry.name):
            sizes[name] += entry.size
        folder, _, base = entry.name.rpartition(b"/")
        if base == b"pyvenv.cfg" and folder:
            always.add(folder)
    always |= {name for name in sizes if _base(name) in ALWAYS}
    often = {name for name, size in sizes.items() if size >= MODEST and _base(name) in OFTEN}
    found: dict[bytes, int] = {}
    # Shorter names come first, so that of what lies in one another the outermost is named.
    for name in sorted(always | often, key=len):
        if not _lies_in(name, found):
            found[name] = sizes[name]
    return found | {name: sizes[name] for name in _large(sizes, found)}


def pattern_of(name: str) -> str:
    """Return the line of the exclude file that leaves out a folder or file, and nothing else."""
    return "/" + re.sub(r"([*?\[\\])", r"\\\1", name)


def count_pointers(snapshot: Snapshot) -> int:
    """Count the files that are pointers of Git LFS; none is read where no .gitattributes is sent."""
    if not any(_base(entry.name) == ".gitattributes" for entry in snapshot.entries):
        return 0
    likely = [entry for entry in snapshot.entries if entry.size in _POINTER_SIZES and not entry.target]
    return sum(_is_pointer(snapshot.root / os.fsdecode(entry.name)) for entry in likely[:_MOST_POINTERS])


def usual_here(root: Path) -> Iterator[str]:
    """Yield what lies in a project's folder and is often not sent."""
    for entry in sorted(os.scandir(root), key=lambda each: each.name):
        is_usual = entry.name in {*ALWAYS, *OFTEN} and entry.is_dir(follow_symlinks=False)
        if is_usual or (entry.is_file(follow_symlinks=False) and entry.stat().st_size >= LARGE):
            yield entry.name


def _large(sizes: Counter[bytes], known: dict[bytes, int]) -> Iterator[bytes]:
    """Yield what is large besides what is known already: of folders in one another the one that makes them so."""
    rest = Counter(sizes)
    for name, size in known.items():
        for outer in _with_outer(name):
            rest[outer] -= size
    large = [name for name, size in rest.items() if size >= LARGE and not _lies_in(name, known)]
    for top in large:
        if b"/" not in top:
            name = top
            while inner := next((each for each in large if _is_most_of(each, name, rest)), None):
                name = inner
            yield name


def _is_most_of(name: bytes, folder: bytes, sizes: Counter[bytes]) -> bool:
    return name.rpartition(b"/")[0] == folder and sizes[name] >= _MOST * sizes[folder]


def _with_outer(name: bytes) -> list[bytes]:
    """Return a name and the folders that it lies in, innermost first."""
    parts = name.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]


def _lies_in(name: bytes, folders: Container[bytes]) -> bool:
    return any(outer in folders for outer in _with_outer(name))


def _base(name: bytes) -> str:
    return os.fsdecode(name.rstrip(b"/").rpartition(b"/")[2])


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False
