"""The command demo."""

from __future__ import annotations

from typing import Annotated

import typer

from remote_tool.cli.options import Verbose
from remote_tool.cli.output.console import inform, leave_unless_ok


def demo(
    *,
    servers: Annotated[
        int, typer.Option("--servers", metavar="N", min=1, max=8, help="Number of servers to create.")
    ] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder and the servers until Ctrl-C.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Create throwaway SSH servers on this machine, and run every step on them."""
    from remote_tool.workflows.demo.journey import DemoOptions, run_demo  # noqa: PLC0415 - it loads the SSH library

    leave_unless_ok(run_demo(DemoOptions(servers=servers, keep=keep, verbose=verbose), inform))
