"""The files of the agent, and the shell scripts that start it on a server and store it there.

The exit status of a script tells what is missing on the server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shlex
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.paths import shell_path
from remote_tool.protocol.marks import JOB_MARKER, SUPERVISOR_MARKER

if TYPE_CHECKING:
    from remote_tool.config.model import Config

ENTRY = "run_control.py"
_PACKAGES = ("agent", "protocol")
NO_PROJECT, NO_SUPERVISOR, NO_PYTHON, NO_PYTHON_AT_ALL, NO_SPACE = 96, 97, 98, 95, 94
# This operation runs with any Python of the server if ours is missing, as in an unfinished environment.
ANY_PYTHON = "clean"
# These operations need nothing but a Python: on a server that is not prepared, the agent runs from memory.
ANYWHERE = {"bandwidth_connect", "bandwidth_listen", "bare_shell", "forward", "gpus", "own_addresses", "top"}
_START = f'{SUPERVISOR_MARKER}=1 exec "$python" -I -S'
_IS_NEW = "import sys; sys.exit(sys.version_info < (3, 8))"
_FIND_PYTHON = f"""python=
for other in "$ours" "$(command -v python3)" "$HOME"/miniconda3/bin/python "$HOME"/miniforge3/bin/python; do
  [ -x "$other" ] && "$other" -I -S -c {shlex.quote(_IS_NEW)} </dev/null >/dev/null 2>&1 && python=$other && break
done
[ -x "$python" ] || exit {NO_PYTHON_AT_ALL}
"""
_ENTER_ANYWHERE = f'cd "$HOME" || exit {NO_PROJECT}\nours=\n{_FIND_PYTHON}'

# Reads {"name": "text"} from stdin, writes the files into the folder in its first argument, and renames that folder
# to the second. Servers with a shared home may do so at the same time: a folder that is there already is kept.
_UNPACK = f"""
import errno, json, os, sys
os.umask(0o077)
new, folder = sys.argv[1:]
try:
    for name, text in json.load(sys.stdin).items():
        path = os.path.join(new, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    try:
        os.rename(new, folder)
    except OSError:
        if not os.path.isdir(folder):
            raise
except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        raise
    sys.stderr.write(error.strerror + chr(10))
    sys.exit({NO_SPACE})
"""

# Runs the agent from memory. The first argument is the number of bytes to read from stdin, so that the request after
# them stays there; the second is the folder in which the files would be. Modules are found by name alone, as the entry
# point makes the packages.
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


def source_archive() -> tuple[str, list[tuple[str, bytes]]]:
    """Return a hash of the agent, and its files: relative names and contents.

    The entry point ``run_control.py`` is beside the folder ``remote_tool/`` with the packages.
    """
    package = Path(__file__).parents[1]
    # A server does not have the public Python API.
    files = [("remote_tool/__init__.py", b"")]
    for path in sorted(path for name in _PACKAGES for path in (package / name).rglob("*.py")):
        relative = path.relative_to(package.parent).as_posix()
        files.append((ENTRY if path.name == ENTRY else relative, path.read_bytes()))
    digest = hashlib.sha256()
    for relative, content in files:
        digest.update(b"%d %s %d\n" % (len(relative), relative.encode("ascii"), len(content)))
        digest.update(content)
    return digest.hexdigest()[:16], files


@cache
def carried_files() -> bytes:
    """Return the files for ``CARRIER``, as one line, which is a single harmless word for any shell."""
    files = {name: content.decode() for name, content in source_archive()[1]}
    packed = zlib.compress(json.dumps(files).encode(), 9)
    return base64.urlsafe_b64encode(packed).rstrip(b"=") + b"\n"


def control_script(config: Config, operation: str, *, is_carried: bool) -> str:
    """Return the shell script that starts the control program: from its folder, or from memory."""
    folder = f"supervisor-{source_archive()[0]}"
    if is_carried:
        enter = _ENTER_ANYWHERE if operation in ANYWHERE else _enter(config, operation)
        program = f'-c {shlex.quote(CARRIER)} {len(carried_files())} "$PWD/{folder}"'
        # An agent in memory cannot start itself again, as it would to get rid of the mark of a job around it.
        return f"{enter}unset {JOB_MARKER}\n{_START} {program}\n"
    if operation in ANYWHERE:
        begin = f"cd {shell_path(config.remote.scripts)} 2>/dev/null && [ -x ./python ] && python=./python"
        return f"{begin} && [ -d {folder} ] || exit {NO_SUPERVISOR}\n{_START} {folder}/{ENTRY}\n"
    found = f"[ -d {folder} ] || exit {NO_SUPERVISOR}\n"
    return f"{_enter(config, operation)}{found}{_START} {folder}/{ENTRY}\n"


def install_script(config: Config, operation: str) -> str:
    """Return the script that stores this version of the agent from stdin: all of its files or none."""
    folder = f"supervisor-{source_archive()[0]}"
    return (
        f"{_enter(config, operation)}"
        "umask 077\n"
        f"new={folder}.new.{secrets.token_hex(8)}\n"
        f"trap 'rm -rf \"$new\"' EXIT; trap 'exit 1' HUP PIPE TERM\n"
        f'"$python" -I -S -c {shlex.quote(_UNPACK)} "$new" {folder}\n'
    )


def _enter(config: Config, operation: str) -> str:
    """Return the lines that change to our folder and find our Python, or any Python if the operation allows."""
    begin = f"cd {shell_path(config.remote.scripts)} || exit {NO_PROJECT}\npython=./python\n"
    if operation == ANY_PYTHON:
        return f"{begin}ours=./python\n{_FIND_PYTHON}"
    # Without its record, the environment is incomplete; other operations do not need it.
    needed = " && [ -s activation.json ]" if operation in {"run", "shell"} else ""
    return f'{begin}[ -x "$python" ]{needed} || exit {NO_PYTHON}\n'
