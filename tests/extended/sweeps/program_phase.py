"""The whole program, as ``remote-tool`` runs it, in a process that has it imported."""

from __future__ import annotations

import sys
from importlib import import_module

from remote_tool.cli.app import main
from tests.program import PROGRAM

for module in PROGRAM:
    import_module(module)


def run(*arguments: str) -> None:
    """Run a command."""
    sys.argv = ["remote-tool", *arguments]
    main()
