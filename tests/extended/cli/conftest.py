"""Two prepared servers that the tests of one process share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.program import remote_tool
from tests.project import make_project, make_workspace_id
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[tuple[TestServer, TestServer]]:
    """Two servers that live as long as the test process."""
    folder = tmp_path_factory.mktemp("cli")
    with ExitStack() as stack:
        first, second = (stack.enter_context(TestServer(name, folder / name, ssh_key)) for name in ("first", "second"))
        yield first, second


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, servers: tuple[TestServer, TestServer]) -> Path:
    """A project that is prepared on both servers."""
    root = make_project(tmp_path_factory.mktemp("projects") / "project", servers)
    prepared = remote_tool("prepare", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    return root


@pytest.fixture
def away(project: Path, tmp_path: Path) -> Path:
    """A project with the first server, which works, and one that cannot be reached."""
    root = tmp_path / "project"
    make_workspace_id(root)
    text = (project / ".remote" / "configs.yaml").read_text()
    gone = "  away:\n    hostname: 127.0.0.1\n    port: 1\n"
    head, _, _ = text.partition("  second:")
    (root / ".remote" / "configs.yaml").write_text(head + gone)
    return root
