"""Start the program: ``remote-tool`` and ``python -m remote_tool``."""

from __future__ import annotations

import atexit
import gc
import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until the program is loaded, Ctrl-C has nothing to clean up, and would print a traceback of imports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The demo starts its commands with Ctrl-C blocked until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

from remote_tool.cli.app import main

# Imports create almost no garbage. Collecting it during imports, and again when the program ends, took a fifth of a
# short command.
gc.set_threshold(10_000, 20, 50)
atexit.register(gc.freeze)

if __name__ == "__main__":
    main()
