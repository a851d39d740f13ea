"""Starts the program: ``remote-tool`` and ``python -m remote_tool``."""

from __future__ import annotations

from remote_tool.cli.app import main

if __name__ == "__main__":
    main()
