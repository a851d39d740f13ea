"""Two machines with Ray for the tests of one process, and a project of its own for each test."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING, Any

import pytest

from tests.extended.sample.test_frameworks import FRAMEWORKS, lacks
from tests.network_hosts import HOME, Network, missing
from tests.project import make_project
from tests.promises.conftest import Desk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.network_hosts import NetworkHost


@pytest.fixture(scope="session")
def _network(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[dict[str, NetworkHost]]:
    if reason := missing():
        pytest.skip(reason)
    if not (FRAMEWORKS / "bin" / "python").exists() or lacks("ray"):
        pytest.skip("no ray in .cache/frameworks: make test brings it")
    with Network(tmp_path_factory.mktemp("ray"), ssh_key) as network:
        yield {name: network.host(name) for name in ("first", "second")}


@pytest.fixture
def _turn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As many clusters at once as there are cores: with four on two, Ray's first node exceeds its limit of 30 s."""
    # pytest-xdist gives each worker a folder in this one.
    folder = tmp_path_factory.getbasetemp().parent
    with ExitStack() as stack:
        turns = [stack.enter_context((folder / f"ray-{turn}").open("w")) for turn in range(os.cpu_count() or 1)]
        while not any(map(_is_taken, turns)):
            time.sleep(0.2)
        yield


def _is_taken(turn: IO[str]) -> bool:
    """Take a turn, until it is closed; return whether it was free."""
    with suppress(BlockingIOError):
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@pytest.fixture
def machines(_network: dict[str, NetworkHost], _turn: None) -> dict[str, NetworkHost]:
    """``first`` and ``second``, up and connected."""
    for host in _network.values():
        host.mend()
        if not host.is_on:
            host.power_on()
    return _network


@pytest.fixture
def desk(machines: dict[str, NetworkHost], tmp_path: Path) -> Desk:
    """A project that is prepared on both, with Ray as ``pip install ray`` brings it: without its dashboard.

    Its processes, and workers that wait for a program, would be a third of what a cluster costs; a test that wants
    them removes ``env``.
    """
    name = f"project-{tmp_path.name}"
    root = make_project(
        tmp_path / "project",
        list(machines.values()),
        name=name,
        environment={"existing": str(FRAMEWORKS)},
        env={"PYTHONPATH": f"{HOME}/{name}/plain", "RAY_prestart_worker_first_driver": "0"},
    )
    (root / "plain").mkdir()
    (root / "plain" / "sitecustomize.py").write_text("import sys\nsys.modules['aiohttp_cors'] = None\n")
    # A desk asks its servers for their homes, which a network host has as well.
    servers: Any = machines
    desk = Desk(root, servers)
    desk.does("prepare")
    return desk
