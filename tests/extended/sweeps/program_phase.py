"""The whole program, as ``remote-tool`` runs it, in a process that has it imported."""

from __future__ import annotations

import sys

from remote_tool.cli.app import main
from remote_tool.cli.commands import jobs as job_commands
from remote_tool.transport.ssh import log_in as ssh_host

__all__ = ["job_commands", "run", "ssh_host"]


def run(*arguments: str) -> None:
    """Run a command."""
    sys.argv = ["remote-tool", *arguments]
    main()
