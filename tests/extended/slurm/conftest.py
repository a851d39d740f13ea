"""A Slurm cluster for the tests of one process, and a project of its own for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.network_hosts import Network
from tests.project import make_project
from tests.promises.conftest import Desk
from tests.slurm_cluster import SlurmCluster, missing_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory, ssh_key: Path) -> Iterator[SlurmCluster]:
    """A login node with the controller, and two nodes with four stand-in GPUs each."""
    reason = missing_slurm()
    if reason is not None:
        pytest.skip(reason)
    with Network(tmp_path_factory.mktemp("slurm"), ssh_key) as network:
        yield SlurmCluster(network).start()


@pytest.fixture
def cluster(slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, with nothing in its queue before and after."""
    yield slurm
    slurm.empty()


@pytest.fixture
def desk(cluster: SlurmCluster, tmp_path: Path) -> Desk:
    """A prepared project whose only server is the login node."""
    return prepared(cluster, tmp_path / "project")


def prepared(cluster: SlurmCluster, root: Path) -> Desk:
    """Make a project of its own for the cluster, and prepare it."""
    name = f"project-{root.parent.name}"
    # A desk asks its servers for their homes, which a network host has as well.
    servers: Any = {"login": cluster.login}
    desk = Desk(make_project(root, [cluster.login], name=name), servers)
    put_slurm(desk, partition="gpu", time="10:00")
    desk.does("prepare")
    return desk


def put_slurm(desk: Desk, **options: object) -> None:
    """Have Slurm start the jobs, with these options."""
    servers = desk.settings()["servers"]
    servers["login"]["slurm"] = options
    desk.configure(servers=servers)
