"""The files of the agent that are sent to servers, and their hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

ENTRY = "run_control.py"
_PACKAGES = ("agent", "protocol")


def source_archive() -> tuple[str, list[tuple[str, bytes]]]:
    """Return a hash of the contents, and each file as (relative name, bytes).

    The entry point ``run_control.py`` is beside the folder ``remote_tool/`` with its packages.
    """
    package = Path(__file__).parents[1]
    # The public Python API is not available on a server.
    files = [("remote_tool/__init__.py", b"")]
    for path in sorted(path for name in _PACKAGES for path in (package / name).rglob("*.py")):
        relative = path.relative_to(package.parent).as_posix()
        files.append((ENTRY if path.name == ENTRY else relative, path.read_bytes()))
    digest = hashlib.sha256()
    for relative, content in files:
        digest.update(b"%d %s %d\n" % (len(relative), relative.encode("ascii"), len(content)))
        digest.update(content)
    return digest.hexdigest()[:16], files
