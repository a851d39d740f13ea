"""Set up, check and measure servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.workflows.servers import (
        bandwidth,
        check,
        gpus,
        install_keys,
        install_ssh_config,
        kept_logins,
        ssh_config,
        top,
    )

__all__ = ["bandwidth", "check", "gpus", "install_keys", "install_ssh_config", "kept_logins", "ssh_config", "top"]

__getattr__ = submodules(__name__, __all__)
