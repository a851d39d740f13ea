"""Configurations without a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from remote_tool.config.model import Config, HostKeyPolicy
from remote_tool.config.servers import Server
from remote_tool.paths import LocalPaths, RemotePaths
from tests.project import make_workspace_id

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.sshd import Reachable


class Configuration(Protocol):
    """Makes a configuration without a file."""

    def __call__(self, servers: Iterable[Reachable], root: Path) -> Config:
        """Return one with these servers for the project folder root."""


def make_configuration(
    servers: Iterable[Reachable], root: Path, *, host_keys: HostKeyPolicy = HostKeyPolicy.ACCEPT_NEW
) -> Config:
    """Configure servers as ``configs.yaml`` would, for the project folder root, which is made."""
    make_workspace_id(root)
    return Config(
        name="project",
        servers={
            server.name: Server(
                name=server.name,
                hostname=server.address,
                port=server.port,
                username=server.username,
                private_key=server.key,
            )
            for server in servers
        },
        local=LocalPaths(root),
        remote=RemotePaths("project"),
        host_keys=host_keys,
    )
