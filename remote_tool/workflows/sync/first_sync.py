"""Before the first sync, report large or usually excluded files in the project, and how to exclude them."""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator
    from pathlib import Path

    from remote_tool.transport.sync.entries import Entry
    from remote_tool.transport.sync.project.contents import Snapshot

LARGE = 100 * 1024**2
MODEST = 10 * 1024**2
MOST_NAMED = 5
# Excluded whatever their size, and only if large.
ALWAYS = (
    *("wandb", "node_modules", "lightning_logs", "mlruns", "tb_logs", ".venv", "venv", ".conda", ".tox", ".nox"),
    *(".pixi", ".dvc", "multirun"),
)
OFTEN = ("data", "dataset", "datasets", "checkpoints", "outputs", "output", "runs", "logs", "results", "models")
# A subfolder with this share of a folder is reported in its place.
_MOST = 0.9
# This file shows that its folder is an environment, whatever its name.
_OF_VENV = b"/pyvenv.cfg"
_NAMED = frozenset([*map(os.fsencode, ALWAYS), _OF_VENV[1:]])
# In the list of sent files.
_ATTRIBUTES = re.compile(rb"[ /]\.gitattributes\0")
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_SIZES = range(100, 300)
_MOST_POINTERS = 10_000


def advice(snapshot: Snapshot, readable: Callable[[float], str], exclude_file: str) -> list[str]:
    """Return a line about files to exclude, and one about Git LFS pointers; only if there are any.

    Args:
        snapshot: The files to send.
        readable: Formats a size.
        exclude_file: The user's exclude file for the project; empty if something else is sent, which it does
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
    """Return the large or usually excluded folders and files by name, with their bytes."""
    sizes = _sizes(entries)
    always = {name for name in sizes if _base(name) in ALWAYS}
    always |= {name.removesuffix(_OF_VENV) for name in sizes if name.endswith(_OF_VENV)}
    often = {name for name, size in sizes.items() if size >= MODEST and _base(name) in OFTEN}
    found: dict[bytes, int] = {}
    # Shorter names come first, so that of nested folders the outermost is named.
    for name in sorted(always | often, key=len):
        if not _lies_in(name, found):
            found[name] = sizes[name]
    return found | {name: sizes[name] for name in _large(sizes, found)}


def _sizes(entries: Iterable[Entry]) -> Counter[bytes]:
    """Return the bytes of each folder, and of the files that may stand out: all of many would need much memory."""
    sizes, folders, least = Counter[bytes](), Counter[bytes](), min(MODEST, LARGE)
    for entry in entries:
        folder, _, base = entry.name.rpartition(b"/")
        if base:
            folders[folder] += entry.size
        if entry.size >= least or base in _NAMED:
            sizes[entry.name] = entry.size
    for folder, size in folders.items():
        for name in _with_outer(folder) if folder else ():
            sizes[name] += size
    return sizes


def pattern_of(name: str) -> str:
    """Return the line of the exclude file that excludes only this folder or file."""
    return "/" + re.sub(r"([*?\[\\])", r"\\\1", name)


def count_pointers(snapshot: Snapshot) -> int:
    """Count the files that are Git LFS pointers; none is read unless .gitattributes is sent."""
    if not _ATTRIBUTES.search(snapshot.sent_list):
        return 0
    likely = (entry for entry in snapshot.entries if entry.size in _POINTER_SIZES and not entry.target)
    return sum(_is_pointer(snapshot.root / os.fsdecode(entry.name)) for entry in islice(likely, _MOST_POINTERS))


def usual_here(root: Path) -> Iterator[str]:
    """Yield entries of a project's folder that are often not sent."""
    for entry in sorted(os.scandir(root), key=lambda each: each.name):
        is_usual = entry.name in {*ALWAYS, *OFTEN} and entry.is_dir(follow_symlinks=False)
        if is_usual or (entry.is_file(follow_symlinks=False) and entry.stat().st_size >= LARGE):
            yield entry.name


def _large(sizes: Counter[bytes], known: dict[bytes, int]) -> Iterator[bytes]:
    """Yield large entries not known already: of nested folders the one that holds most of the data."""
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
    """Return a name and its parents, innermost first."""
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
