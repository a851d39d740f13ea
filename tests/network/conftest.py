"""A switch with hosts for each test, and configurations for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import make_configuration
from tests.network_hosts import Network, missing, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Configuration


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip where no host can be made; remove what a killed run has left."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    remove_leftovers(of_this_process=True)


@pytest.fixture
def network(namespaces: None, tmp_path: Path, ssh_key: Path) -> Iterator[Network]:  # noqa: ARG001
    """A switch; its hosts end with the test."""
    with Network(tmp_path / "network", ssh_key) as network:
        yield network


@pytest.fixture
def network_configuration() -> Configuration:
    """A function that configures hosts, as well as servers on loopback."""
    return make_configuration
