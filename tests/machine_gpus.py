"""The GPUs of the machine that runs the tests are not those of the servers that tests make."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PROGRAM = "nvidia-smi"
_without: dict[str, str] = {}


def without_gpus(path: str) -> str:
    """Return the folders of a PATH; in place of one that has an nvidia-smi, a folder with links to all else in it."""
    return os.pathsep.join(
        _mirror(each) if (Path(each) / PROGRAM).exists() else each for each in path.split(os.pathsep)
    )


def put_no_gpus(folder: Path, path: str) -> None:
    """Let a server whose PATH begins with a folder have no GPUs, if an nvidia-smi of the machine comes later.

    The program itself adds the folders of the system to the PATH of a server, so a link to all else would not do.
    """
    if shutil.which(PROGRAM, path=path) is not None and not (folder / PROGRAM).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROGRAM).write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
        (folder / PROGRAM).chmod(0o755)


def _mirror(folder: str) -> str:
    if folder not in _without:
        made = Path(tempfile.mkdtemp(prefix="remote-tool-programs-"))
        atexit.register(_remove, made, os.getpid())
        # Servers run as other users in some tests.
        made.chmod(0o755)
        for each in Path(folder).iterdir():
            with suppress(OSError):
                if each.name != PROGRAM:
                    (made / each.name).symlink_to(each)
        _without[folder] = str(made)
    return _without[folder]


def _remove(folder: Path, maker: int) -> None:
    # A test's fork may end as Python does.
    if os.getpid() == maker:
        shutil.rmtree(folder, ignore_errors=True)
