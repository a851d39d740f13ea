"""Two prepared servers that the tests of one process share; each test finds its own jobs by their ids."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from tests.project import make_project
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[tuple[TestServer, TestServer]]:
    """Two servers that live as long as the test process."""
    folder = tmp_path_factory.mktemp("shared")
    with ExitStack() as stack:
        first, second = (stack.enter_context(TestServer(name, folder / name, ssh_key)) for name in ("first", "second"))
        yield first, second


@pytest.fixture(scope="session")
def shared_project(tmp_path_factory: pytest.TempPathFactory, shared_servers: tuple[TestServer, TestServer]) -> Path:
    """A project that is prepared on the shared servers."""
    root = make_project(tmp_path_factory.mktemp("projects") / "project", shared_servers)
    Workspace.find(root).prepare()
    return root


@pytest.fixture
def workspace(shared_project: Path) -> Workspace:
    """The prepared workspace."""
    return Workspace.find(shared_project)
