"""What a server is told of where its commands begin: here, behind a launch command, or in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remote_tool.config.model import EnvironmentKind

if TYPE_CHECKING:
    from remote_tool.config.model import Config


def entry_of(config: Config, server: str) -> dict[str, Any] | None:
    """Return the part of a request that says so; None when commands begin as they are."""
    found = config.servers[server]
    if not found.is_entered:
        return None
    # One that was named for this server is reached from inside too: it lies in the project's folder, or is mounted.
    activates = config.for_server(server).environment.kind is not EnvironmentKind.INSIDE
    if found.container is not None:
        return {"container": list(found.container), "activate": activates}
    return {"launch": list(found.launch or ()), "activate": activates}
