"""Small and silent file systems, whose source has a name by which a later run finds what a killed one has left."""

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


@contextmanager
def silent_disk(folder: Path) -> Iterator[None]:
    """Mount a file system over a folder that never answers: whoever looks into it hangs until the context is left."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"a disk that hangs needs /dev/fuse: {error.strerror}")
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    command = ["mount", "--internal-only", "-t", "fuse", "-o", options, new_name(), str(folder)]
    try:
        made = subprocess.run(command, check=False, capture_output=True, text=True, pass_fds=(device,), timeout=300)
        if made.returncode:
            pytest.skip(f"this system mounts nothing: {made.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=300)
    finally:
        # Who hangs gets an error.
        os.close(device)
