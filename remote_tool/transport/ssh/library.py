"""The only import of asyncssh, and a quick one.

When it is imported, asyncssh looks for two C libraries with a compiler and a linker; here a file has the answer.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What ldconfig prints, and where a program that starts looks: strings that end with a NUL, names and paths.
CACHE = Path("/etc/ld.so.cache")
_CERTIFICATES = "asyncssh.crypto.x509"


@contextmanager
def quick_library_search() -> Iterator[None]:
    """Import asyncssh in here: it finds what it would find, without 16 processes and a module that cannot load.

    ``ctypes.util.find_library`` asks ldconfig, and for a library that is not there gcc and ld as well. The module for
    X.509 loads all of cryptography's before it misses pyOpenSSL.
    """
    thorough = ctypes.util.find_library
    spared = _CERTIFICATES not in sys.modules and find_spec("OpenSSL") is None
    setattr(ctypes.util, "find_library", _search(thorough))  # noqa: B010 - mypy knows it as a function of its own
    if spared:
        sys.modules[_CERTIFICATES] = None  # type: ignore[assignment]  # its import fails, as it would in the end
    try:
        yield
    finally:
        ctypes.util.find_library = thorough
        if spared:
            del sys.modules[_CERTIFICATES]


def _search(thorough: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Return what looks a library up in the cache of the dynamic linker, and thoroughly where that may not be all."""
    try:
        cache = b"" if "LD_LIBRARY_PATH" in os.environ else CACHE.read_bytes()
    except OSError:
        cache = b""

    def find(name: str) -> str | None:
        if not cache:
            return thorough(name)
        found = set(re.findall(rb"[\0/](lib%s\.so[^\0/]*)(?=\0)" % re.escape(os.fsencode(name)), cache))
        return os.fsdecode(max(found, key=_version)) if found else None

    return find


def _version(name: bytes) -> list[int]:
    """Return what orders names as ldconfig does, the newest last."""
    return [int(digits) for digits in re.findall(rb"\d+", name)]


with quick_library_search():
    import asyncssh
    from asyncssh.config import SSHClientConfig

__all__ = ["CACHE", "SSHClientConfig", "asyncssh", "quick_library_search"]
