"""Entry point on a server: ``python -I -S run_control.py``, beside the folder of the packages."""

import gc
import importlib
import os
import sys

# Nothing needs their __init__ modules; finding and loading each would cost every answer as much as a full module.
_PACKAGES = (
    "remote_tool",
    "remote_tool.protocol",
    "remote_tool.agent",
    "remote_tool.agent.artifacts",
    "remote_tool.agent.cleaning",
    "remote_tool.agent.frozen",
    "remote_tool.agent.hook",
    "remote_tool.agent.jobs",
    "remote_tool.agent.launch",
    "remote_tool.agent.leases",
    "remote_tool.agent.logs",
    "remote_tool.agent.machine",
    "remote_tool.agent.network",
    "remote_tool.agent.proc",
    "remote_tool.agent.relay",
    "remote_tool.agent.supervisor",
    "remote_tool.agent.supervisor.limits",
    "remote_tool.agent.terminal",
    "remote_tool.agent.wrapper",
)


def _add_packages(folder: str) -> None:
    for name in _PACKAGES:
        module = sys.modules[name] = type(sys)(name)
        module.__path__ = [os.path.join(folder, name.replace(".", os.sep))]


if __name__ == "__main__":
    # Imports create almost no garbage.
    gc.disable()
    entry = os.path.abspath(__file__)
    _add_packages(os.path.dirname(entry))
    status = importlib.import_module("remote_tool.agent.control").main(entry)
    sys.stderr.flush()
    # Exit without finalizing Python or joining threads, which would take a tenth of a short answer.
    os._exit(status)
