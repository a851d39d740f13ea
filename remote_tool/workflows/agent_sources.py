"""The files of the agent that are sent to servers, and their hash; or all of it in one line, to run from memory."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from functools import cache
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


# Reads as many bytes of stdin as its first argument says, so that the request after them stays there, and runs the
# entry point; its second argument is the folder in which the files would be. Modules are found by their names alone,
# as the entry point makes the packages.
CARRIER = """
import json, os, sys, zlib
from binascii import a2b_base64
from importlib.machinery import ModuleSpec
data = b""
while len(data) < int(sys.argv[1]):
    more = os.read(0, int(sys.argv[1]) - len(data))
    if not more:
        sys.exit(1)
    data += more
folder = sys.argv[2]
files = json.loads(zlib.decompress(a2b_base64(data.translate(bytes.maketrans(b"-_", b"+/")) + b"==")))
class Carried:
    def find_spec(self, name, path=None, target=None):
        file = name.replace(".", "/") + ".py"
        return ModuleSpec(name, self, origin=folder + "/" + file) if file in files else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.__file__ = module.__spec__.origin
        exec(compile(files[module.__name__.replace(".", "/") + ".py"], module.__file__, "exec"), module.__dict__)
sys.meta_path.insert(0, Carried())
entry = folder + "/ENTRY"
exec(compile(files["ENTRY"], entry, "exec"), {"__name__": "__main__", "__file__": entry})
""".replace("ENTRY", ENTRY)


@cache
def carried_files() -> bytes:
    """Return the files for ``CARRIER``, as a line that is one harmless word to any shell that gets it."""
    files = {name: content.decode() for name, content in source_archive()[1]}
    packed = zlib.compress(json.dumps(files).encode(), 9)
    return base64.urlsafe_b64encode(packed).rstrip(b"=") + b"\n"
