"""The files of the packages that a server needs, and their hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

ENTRY = "run_control.py"
_PACKAGES = ("agent", "protocol")


def source_archive() -> tuple[str, list[tuple[str, bytes]]]:
    """Return a hash of the contents, and each file as (relative name, bytes).

    The entry ``run_control.py`` lies beside the folder ``remote_tool/``, which has the packages that it needs.
    """
    package = Path(__file__).parents[1]
    # What a user's program imports from remote_tool is not on a server.
    files = [("remote_tool/__init__.py", b"")]
    for path in sorted(path for name in _PACKAGES for path in (package / name).rglob("*.py")):
        relative = path.relative_to(package.parent).as_posix()
        files.append((ENTRY if path.name == ENTRY else relative, path.read_bytes()))
    digest = hashlib.sha256()
    for relative, content in files:
        digest.update(b"%d %s %d\n" % (len(relative), relative.encode("ascii"), len(content)))
        digest.update(content)
    return digest.hexdigest()[:16], files
