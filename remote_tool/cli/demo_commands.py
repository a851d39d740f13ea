"""The command that shows everything."""

from __future__ import annotations

from typing import Annotated

import typer

from remote_tool.cli.console import inform, leave_unless_ok
from remote_tool.cli.options import Verbose


def demo(
    *,
    servers: Annotated[int, typer.Option("--servers", metavar="N", min=1, max=8, help="How many servers to make.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep folder and servers until Ctrl-C.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Make throw-away SSH servers on this machine, and show the whole journey on them."""
    # It needs the SSH library, which --help does without.
    from remote_tool.workflows.demo.journey import DemoOptions, run_demo  # noqa: PLC0415

    leave_unless_ok(run_demo(DemoOptions(servers=servers, keep=keep, verbose=verbose), inform))
