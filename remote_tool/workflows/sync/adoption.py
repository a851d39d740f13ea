"""Whether a server's folder was sent only from other workspaces, for commands that change it other than by a sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.transport.pool import on_every
from remote_tool.transport.sync.project import workspace
from remote_tool.transport.sync.server_script import workspaces_script
from remote_tool.transport.sync.server_state import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from remote_tool.config.model import Config
    from remote_tool.errors import AnotherWorkspaceError
    from remote_tool.transport.pool import HostPool


async def adopts_folder(pool: HostPool, config: Config, server: str, lines: Sequence[str], state: str) -> bool:
    """Return whether the user shares a folder that only others have sent; False if it is not one.

    Raises:
        AnotherWorkspaceError: The user does not.
    """
    error = _refusal(config, server, lines, state)
    if error is not None and not await pool.prompter.adopt(error.question):
        raise error
    return error is not None


async def find_folders_of_others(
    pool: HostPool, config: Config, servers: Iterable[str]
) -> dict[str, AnotherWorkspaceError]:
    """Return the error of each server whose folder only others have sent; a server that does not answer has none."""

    async def ask(server: str) -> AnotherWorkspaceError | None:
        host = await pool.host(server)
        answer = await host.run(workspaces_script(config.remote), label="who has sent the project")
        state, *lines = answer.stdout.decode(errors="replace").splitlines() or [""]
        return _refusal(config, server, lines, state)

    others = [server for server in servers if not config.servers[server].localhost]
    found = (await on_every(others, ask)).values
    return {server: error for server, error in found.items() if error is not None}


def _refusal(config: Config, server: str, lines: Sequence[str], state: str) -> AnotherWorkspaceError | None:
    local, own = config.local, workspace.own_workspace(config.local)
    snapshot = state.removeprefix(f"{COMPLETE} ") if state.startswith(f"{COMPLETE} ") else ""
    has_sent = workspace.has_sent(local.known_copy(server), local.begun_sync(server), snapshot)
    if not workspace.are_others(own, lines, has_sent=has_sent):
        return None
    return workspace.refusal(server, config.remote, own, lines)
