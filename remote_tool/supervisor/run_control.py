"""The program that runs on a server: ``python -I -S run_control.py``, with the package's folder beside it."""

import importlib
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.exit(importlib.import_module("supervisor.control").main(os.path.abspath(__file__)))
