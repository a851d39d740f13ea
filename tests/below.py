"""The files below a folder that others write in meanwhile: what has gone again by then is left out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Tests write no such file, but some make one of the largest size there is, which has no blocks.
_LARGEST = 2**30


def files_below(*folders: Path) -> Iterator[Path]:
    """Yield the plain files, and those that links lead to; folders that vanish meanwhile are passed over."""
    for folder in folders:
        for parent, _, names in os.walk(folder):
            yield from (path for path in (Path(parent, name) for name in names) if path.is_file())


def contents_below(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield each file with what it holds; one that is all hole holds nothing."""
    for path in files_below(*folders):
        with suppress(FileNotFoundError):
            if path.stat().st_size < _LARGEST:
                yield path, path.read_bytes()
