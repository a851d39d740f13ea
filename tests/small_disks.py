"""Small file systems, whose source has a name by which a later run finds what a killed one has left."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.leftovers import new_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system over a folder, which is made; skip where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("a disk of its own needs root")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, new_name(), str(folder)]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this system mounts nothing: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
