"""Every rsync that this machine has: its own, and those that tools/rsyncs has unpacked beside it."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sshd import TestServer

_FOLDER = Path(__file__).parents[1] / ".cache" / "rsyncs"
OWN = shutil.which("rsync") or "rsync"
_UNPACKED = sorted(str(path) for path in _FOLDER.glob("*/usr/bin/rsync"))
_WHY = "no other rsync in .cache/rsyncs: make test brings those that apt has"
_OTHERS = [pytest.param(path, id=Path(path).parents[2].name) for path in _UNPACKED]

EACH_RSYNC = [pytest.param(OWN, id="own"), *_OTHERS]
PAIRS = [
    pytest.param(pair, id="-to-".join(Path(path).parents[2].name for path in pair))
    for pair in itertools.product(_UNPACKED, repeat=2)
] or [pytest.param(("", ""), marks=pytest.mark.skip(reason=_WHY))]


def use_there(server: TestServer, program: str) -> None:
    """Put an rsync first on the PATH of a server."""
    if program != OWN:
        server.programs.mkdir(parents=True, exist_ok=True)
        (server.programs / "rsync").symlink_to(program)


def use_here(patch: pytest.MonkeyPatch, program: str) -> None:
    """Put an rsync first on the PATH of this machine."""
    patch.setenv("PATH", f"{Path(program).parent}:{os.environ['PATH']}")
