"""The files of all programs, read before each measurement: nobody's time is that of a disk.

Some machines, rented ones above all, have a kernel that takes away within seconds what is not in use. Then whoever has
more files than others pays for a cold cache, which has nothing to do with what is compared.
"""

from __future__ import annotations

import functools
import shutil
import sys
import sysconfig
from pathlib import Path

PROGRAMS = ("ssh", "sshd", "rsync", "bash", "sh", "stat", "sed", "xargs", "sha256sum", "tail", "setsid", "nohup")
# What torch brings is too much for that, and is the same for all.
PACKAGES = (
    *("asyncssh", "cryptography", "typer", "yaml", "rich", "pssh", "ssh2", "gevent", "greenlet", "zope"),
    *("paramiko", "nacl", "bcrypt", "labml", "labml_remote"),
)
LARGEST = 32 * 1024 * 1024


def warm() -> None:
    """Read them all; it takes some hundredths of a second where they are in the cache."""
    for file in _files():
        try:
            with file.open("rb", buffering=0) as stream:
                while stream.read(1024 * 1024):
                    pass
        except OSError:
            continue


@functools.cache
def _files() -> tuple[Path, ...]:
    here = Path(__file__).parent.parent
    standard = Path(sysconfig.get_path("stdlib"))
    folders = [here / "remote_tool", *(standard / name for name in ("__pycache__", "lib-dynload"))]
    folders += [standard / name for name in ("asyncio", "json", "re", "logging")]
    for place in (Path(sysconfig.get_path("purelib")), *(here / ".cache" / "bench").glob("lib/python*/site-packages")):
        folders += [folder for folder in place.iterdir() if folder.name.partition(".")[0] in PACKAGES]
    programs = [sys.executable, *filter(None, map(shutil.which, PROGRAMS))]
    files = [Path(program).resolve() for program in programs]
    files += [file for folder in folders for file in folder.rglob("*") if file.suffix in {".pyc", ".so"}]
    files += (Path(sys.base_prefix) / "lib").glob("libpython*.so*")
    files += Path("/usr/lib").glob("*-linux-gnu/lib[cs][.rsy]*.so*")
    return tuple(file for file in files if file.is_file() and file.stat().st_size < LARGEST)
