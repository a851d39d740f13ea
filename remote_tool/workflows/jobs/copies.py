"""Whether servers still have the copies of the project that jobs ran in."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remote_tool.transport.pool import on_every

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.transport.pool import Results
    from remote_tool.workflows.context import Context


async def ask_for_copies(context: Context, copies: Mapping[str, str]) -> Results[bool]:
    """Ask each server whether it has its copy, given by name."""

    async def has_copy(server: str) -> bool:
        place = f"{context.config.remote.copies}/{copies[server]}"
        host = await context.pool.host(server)
        return (await host.run(f'cd "$HOME" && test -d {shlex.quote(place)}', check=False, label="kept code")).ok

    return await on_every(copies, has_copy)
