"""The files of this package that a server needs, and their hash."""

from __future__ import annotations

import hashlib
import os

ENTRY = "run_control.py"
_LOCAL_ONLY = {"sources.py"}


def source_archive() -> tuple[str, list[tuple[str, bytes]]]:
    """Return a hash of the contents, and each file as (relative name, bytes).

    The entry ``run_control.py`` lies beside the folder ``supervisor/`` with the other modules.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    files = []
    for name in sorted(os.listdir(here)):
        if name.endswith(".py") and name not in _LOCAL_ONLY:
            with open(os.path.join(here, name), "rb") as stream:
                files.append((name if name == ENTRY else f"supervisor/{name}", stream.read()))
    digest = hashlib.sha256()
    for relative, content in files:
        digest.update(b"%d %s %d\n" % (len(relative), relative.encode("ascii"), len(content)))
        digest.update(content)
    return digest.hexdigest()[:16], files
