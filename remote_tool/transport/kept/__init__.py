"""Logins that are kept between commands, by OpenSSH's own connection sharing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.lazy import submodules

if TYPE_CHECKING:
    from remote_tool.transport.kept import find, folder, start

__all__ = ["find", "folder", "start"]

__getattr__ = submodules(__name__, __all__)
