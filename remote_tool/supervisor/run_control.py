"""The program that runs on a server: ``python -I -S run_control.py``, with the package's folder beside it."""

import gc
import os
import sys

if __name__ == "__main__":
    # Next to nothing of what is imported is garbage.
    gc.disable()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    # No import of importlib: every answer would wait for it.
    status = __import__("supervisor.control", fromlist=["main"]).main(os.path.abspath(__file__))
    sys.stderr.flush()
    # All is said, and no thread is waited for: to take Python apart would cost a tenth of a short answer.
    os._exit(status)
