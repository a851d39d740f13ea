"""Operations of the agent on the nodes where jobs of Slurm run, beside these, in their allocations."""

from __future__ import annotations

import shlex
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from remote_tool.workflows.slurm.look import FIND_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from remote_tool.transport.host import Channel, Completed, Host, Login, UserTerminal


class NodeHost:
    """A node of an allocation: scripts go to it through the login node, as steps of srun.

    Args:
        login: The login node.
        reference: The id of the batch job.
        node: The name of the node.
    """

    def __init__(self, login: Host, reference: str, node: str) -> None:
        self._login = login
        words = [f"--jobid={reference}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap", "--mpi=none"]
        self._srun = f"{FIND_PROGRAMS}exec srun --quiet --unbuffered {shlex.join(words)} /bin/sh -c "

    @property
    def name(self) -> str:
        """The name of the login node, as the configuration has it."""
        return self._login.name

    @property
    def login(self) -> Login:
        """The login of the connection."""
        return self._login.login

    async def run(self, script: str, **options: Any) -> Completed:  # noqa: ANN401 - those of Host.run
        """Run a script, and wait for its end."""
        return await self._login.run(self._srun + shlex.quote(script), **options)

    @asynccontextmanager
    async def open(
        self, script: str, *, label: str = "", terminal: UserTerminal | None = None
    ) -> AsyncIterator[Channel]:
        """Start a script, and return its streams."""
        async with self._login.open(self._srun + shlex.quote(script), label=label, terminal=terminal) as channel:
            yield channel

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        """Report silence of the login node."""
        await self._login.watch(seconds, report)
