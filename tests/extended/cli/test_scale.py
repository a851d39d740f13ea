"""Many servers: what each of them takes of this machine, measured in proportion."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.program import remote_tool
from tests.project import make_project
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVERS = 8
# 64 servers need about 330 of these, of the 1024 that are usual.
FILES = 5 * SERVERS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[Path]:
    """A project that is prepared on eight servers."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(TestServer(f"gpu{number}", folder / f"gpu{number}", ssh_key))
            for number in range(SERVERS)
        ]
        root = make_project(folder / "project", servers)
        prepared = remote_tool("prepare", cwd=root)
        assert prepared.returncode == 0, prepared.stderr
        yield root


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["prepare", "rsync", "run --cmd true", "job-run --no-sync --cmd true", "job-list", "job-rsync"],
)
def test_eight_servers_need_no_more_than_five_files_each(cluster: Path, words: str) -> None:
    command = f'ulimit -n {FILES}; exec "$0" -m remote_tool {words}'
    ran = subprocess.run(
        ["/bin/bash", "-c", command, sys.executable], cwd=cluster, check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
