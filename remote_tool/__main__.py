"""Starts the program: ``remote-tool`` and ``python -m remote_tool``."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until the program is loaded Ctrl-C has nothing to clean up, and a traceback of imports would help nobody.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from remote_tool.cli.app import main

if __name__ == "__main__":
    main()
