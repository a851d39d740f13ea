"""Importing the SSH library costs no process, and finds what it would have found."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from remote_tool.transport.ssh import library

if TYPE_CHECKING:
    from pathlib import Path

HAS_CACHE = library.CACHE.exists() and "LD_LIBRARY_PATH" not in os.environ
COUNT = """
import sys
started = []
sys.addaudithook(lambda event, arguments: started.append(arguments) if event == "subprocess.Popen" else None)
import remote_tool.transport.ssh.log_in
import asyncssh.crypto
print(len(started), [name for name in sys.modules if name.startswith("cryptography.x509")])
"""


@pytest.mark.skipif(not HAS_CACHE, reason="the dynamic linker has no cache here, or is told where to look")
def test_the_ssh_library_is_imported_without_a_process_and_without_certificates_that_it_could_not_use() -> None:
    answer = subprocess.run([sys.executable, "-c", COUNT], check=True, capture_output=True, text=True)
    assert answer.stdout == "0 []\n"


@pytest.mark.skipif(not HAS_CACHE, reason="the dynamic linker has no cache here, or is told where to look")
@pytest.mark.parametrize("name", ["c", "z", "crypto", "nettle", "no-such-library"])
def test_a_library_is_found_as_python_finds_it(name: str) -> None:
    usual = ctypes.util.find_library(name)
    with library.quick_library_search():
        assert ctypes.util.find_library(name) == usual


def test_everything_is_as_before_afterwards() -> None:
    usual, modules = ctypes.util.find_library, set(sys.modules)
    with pytest.raises(ZeroDivisionError), library.quick_library_search():
        raise ZeroDivisionError
    assert ctypes.util.find_library is usual
    assert set(sys.modules) == modules


def test_without_the_cache_of_the_linker_the_search_is_thorough(tmp_path: Path) -> None:
    asked = mock.Mock(return_value="found.so")
    with mock.patch.object(library, "CACHE", tmp_path / "none"):
        assert library._cache_search(asked)("oqs") == "found.so"
    (tmp_path / "cache").write_bytes(b"\0/lib/liboqs.so\0/lib/liboqs.so.10\0/lib/liboqs.so.9\0/lib/libz.so.1\0")
    with mock.patch.object(library, "CACHE", tmp_path / "cache"), mock.patch.dict(os.environ):
        os.environ.pop("LD_LIBRARY_PATH", None)
        assert library._cache_search(asked)("oqs") == "liboqs.so.10"
        assert library._cache_search(asked)("z") == "libz.so.1"
        assert library._cache_search(asked)("other") is None
        os.environ["LD_LIBRARY_PATH"] = "/opt/lib"
        assert library._cache_search(asked)("z") == "found.so"
    assert asked.call_count == 2
