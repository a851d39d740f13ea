"""What sweeps share: prepared processes to fork from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.small_disks import small_disk

from .injection import Zygote, can_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def tracing() -> None:
    """Needs strace."""
    if not can_trace():
        pytest.skip("strace is not here, or may not look at processes")


@pytest.fixture(scope="module")
def zygote(tracing: None) -> Iterator[Zygote]:
    """A process that has the control program imported, as ``python run_control.py`` has when it begins."""
    del tracing
    # One folder with a bash, so that the search for it is short.
    environment = {"REMOTE_TOOL_SUPERVISOR": "1", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    modules = (f"remote_tool.agent.{name}" for name in ("control", "jobs.start", "jobs.stop"))
    with Zygote(*modules, "ctypes", **environment) as process:
        yield process


@pytest.fixture(name="small_disk")
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for little."""
    with small_disk(tmp_path / "disk", "size=128k,nr_inodes=40,mode=0700") as folder:
        yield folder
