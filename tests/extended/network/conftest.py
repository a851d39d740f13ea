"""A switch with hosts for each test, and configurations for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from remote_tool import Workspace
from remote_tool.workflows.events import Event, Notice
from remote_tool.workspace import Hooks
from tests.extended.configuration import make_configuration
from tests.network_hosts import Network, missing
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.extended.configuration import Configuration
    from tests.network_hosts import NetworkHost


class MakeWorkspace(Protocol):
    """Makes a project and prepares hosts for it."""

    def __call__(self, *hosts: NetworkHost, notices: list[str] | None = None, **settings: object) -> Workspace:
        """``notices`` is told what users are told; ``settings`` go into configs.yaml."""


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip where no host can be made."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def network(namespaces: None, tmp_path: Path, ssh_key: Path) -> Iterator[Network]:  # noqa: ARG001
    """A switch; its hosts end with the test."""
    with Network(tmp_path / "network", ssh_key) as network:
        yield network


@pytest.fixture
def network_configuration() -> Configuration:
    """A function that configures hosts, as well as servers on loopback."""
    return make_configuration


@pytest.fixture
def make_workspace(tmp_path: Path) -> MakeWorkspace:
    """A function that prepares hosts for a project."""

    def make(*hosts: NetworkHost, notices: list[str] | None = None, **settings: object) -> Workspace:
        root = make_project(tmp_path / "project", hosts, **settings)
        told: list[str] = [] if notices is None else notices

        def report(event: Event) -> None:
            if isinstance(event, Notice):
                told.append(f"{event.server}: {event.text}")

        workspace = Workspace.find(root, Hooks(report=report))
        workspace.prepare()
        return workspace

    return make
