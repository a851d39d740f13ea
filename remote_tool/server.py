"""Servers in the shape of labml_remote's Python API: ``for name in SERVERS: SERVERS[name].conf.hostname``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.workflows.selection import JobSelection, choose_servers
from remote_tool.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.config import servers


@dataclass(frozen=True)
class Server:
    """A server of the workspace that the current folder belongs to.

    Attributes:
        name: As in the configuration.
    """

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def conf(self) -> servers.Server:
        """The configuration: ``hostname``, ``username``, ``private_key``."""
        return Workspace.find().config.servers[self.name]

    def setup(self) -> None:
        """Install the environment."""
        Workspace.find().setup([self.name])

    def rsync(self) -> None:
        """Send changed project files."""
        Workspace.find().rsync([self.name])

    def update_packages(self) -> None:
        """Install the packages that the project lists."""
        Workspace.find().update_packages([self.name])

    def rsync_jobs(self) -> None:
        """Fetch the logs and artifacts of its jobs."""
        Workspace.find().pull_logs(JobSelection(servers=(self.name,), hidden=True)).raise_if_any_failed()


class Servers:
    """The servers by name, in the order of the configuration."""

    def __iter__(self) -> Iterator[str]:
        return iter(Workspace.find().config.usual_servers)

    def __len__(self) -> int:
        return len(Workspace.find().config.usual_servers)

    def __getitem__(self, name: str) -> Server:
        """Return a server.

        Raises:
            UsageError: No server has this name.
        """
        (known,) = choose_servers(Workspace.find().config, [name])
        return Server(known)


SERVERS = Servers()
