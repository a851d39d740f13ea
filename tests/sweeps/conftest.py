"""What sweeps share: prepared processes to fork from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .injection import Zygote, can_trace

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    with Zygote("remote_tool.supervisor.control", "ctypes", **environment) as process:
        yield process
