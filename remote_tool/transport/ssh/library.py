"""Import asyncssh, faster than by a plain import; no other module imports it.

While it is imported, asyncssh searches for two C libraries with a compiler and a linker; a cache file is enough.
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

# The output of ldconfig, and the dynamic linker's cache: NUL-terminated names and paths.
CACHE = Path("/etc/ld.so.cache")
_CERTIFICATES = "asyncssh.crypto.x509"


@contextmanager
def quick_library_search() -> Iterator[None]:
    """Speed up the import of asyncssh in this context: 16 processes and a module that cannot load are left out.

    ``ctypes.util.find_library`` runs ldconfig, and gcc and ld for a missing library. The module for
    X.509 imports all of cryptography before failing for lack of pyOpenSSL.
    """
    original_search = ctypes.util.find_library
    skips_certificates = _CERTIFICATES not in sys.modules and find_spec("OpenSSL") is None
    setattr(ctypes.util, "find_library", _cache_search(original_search))  # noqa: B010 - mypy knows it as a function of its own
    if skips_certificates:
        sys.modules[_CERTIFICATES] = None  # type: ignore[assignment]  # its import fails, as it would in the end
    try:
        yield
    finally:
        ctypes.util.find_library = original_search
        if skips_certificates:
            del sys.modules[_CERTIFICATES]


def _cache_search(original_search: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Return a search in the dynamic linker's cache; where that may be incomplete, the original one."""
    try:
        cache = b"" if "LD_LIBRARY_PATH" in os.environ else CACHE.read_bytes()
    except OSError:
        cache = b""

    def find(name: str) -> str | None:
        if not cache:
            return original_search(name)
        found = set(re.findall(rb"[\0/](lib%s\.so[^\0/]*)(?=\0)" % re.escape(os.fsencode(name)), cache))
        return os.fsdecode(max(found, key=_version)) if found else None

    return find


def _version(name: bytes) -> list[int]:
    """Return a sort key that orders names like ldconfig, newest last."""
    return [int(digits) for digits in re.findall(rb"\d+", name)]


with quick_library_search():
    import asyncssh
    from asyncssh.config import SSHClientConfig

__all__ = ["CACHE", "SSHClientConfig", "asyncssh", "quick_library_search"]
