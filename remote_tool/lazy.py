"""Packages whose modules are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


def submodules(package: str, names: Sequence[str]) -> Callable[[str], ModuleType]:
    """Return a package's ``__getattr__`` that imports these of its modules when they are asked for."""

    def get(name: str) -> ModuleType:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return get
