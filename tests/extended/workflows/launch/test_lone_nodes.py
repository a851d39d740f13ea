"""Launches whose nodes each train alone, which end like any other: on two real servers, with real torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from tests.program import remote_tool
from tests.project import make_project
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# On a busy machine, importing torch takes a minute in torchrun, and then in every rank.
pytestmark = [pytest.mark.slow, pytest.mark.row(179)]

MEET = """
import os, sys, time
import torch.distributed as dist
rank, size = (os.environ.get(name) for name in ("NODE_RANK", "NNODES"))
place = {} if size is None else {"rank": int(rank), "world_size": int(size)}
for word in sys.argv[1:]:
    if word == "meet":
        dist.init_process_group("gloo", **place)
        dist.barrier()
    elif word == "part":
        dist.destroy_process_group()
    else:
        time.sleep(float(word))
"""
WARNING = "warning: no process on first, second joined a process group, so each trained alone"
TORCHRUN = ("helper-torch-launch", "--follow", "--cmd")
ELASTIC = ("helper-torch-launch", "--max-restarts", "1", "--follow", "--cmd")
SHELL = ("helper-launch", "--follow", "--cmd")
SOONER = {"LOOK_SECONDS = 10.0": "LOOK_SECONDS = 1.0", "ALONE_SECONDS = 20.0": "ALONE_SECONDS = 2.0"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[Path]:
    """A prepared project on two servers whose supervisors look often."""
    folder = tmp_path_factory.mktemp("lone")
    with (
        TestServer("first", folder / "first", ssh_key) as first,
        TestServer("second", folder / "second", ssh_key) as second,
    ):
        root = make_project(folder / "project", [first, second])
        Workspace.find(root).prepare()
        (root / "meet.py").write_text(MEET)
        modules = list(folder.glob("*/**/agent/launch/rendezvous.py"))
        assert len(modules) == 2
        for module in modules:
            text = module.read_text()
            for usual, sooner in SOONER.items():
                assert usual in text
                text = text.replace(usual, sooner)
            module.write_text(text)
        yield root


@pytest.mark.parametrize(
    ("launcher", "what", "is_alone"),
    [
        (TORCHRUN, "meet.py 6", True),
        (SHELL, "meet.py 6", True),
        (ELASTIC, "meet.py meet 6", False),
        # For less than the time between two looks.
        (TORCHRUN, "meet.py 6 meet part", False),
    ],
)
def test_a_launch_says_when_each_node_trained_alone(
    project: Path, launcher: tuple[str, ...], what: str, *, is_alone: bool
) -> None:
    done = remote_tool(*launcher, what, cwd=project, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (WARNING in done.stderr) == is_alone, done.stderr
