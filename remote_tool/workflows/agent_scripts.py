"""The shell scripts that start the agent on a server, and store it there; their exit statuses say what is missing."""

from __future__ import annotations

import secrets
import shlex
from typing import TYPE_CHECKING

from remote_tool.protocol.marks import JOB_MARKER, SUPERVISOR_MARKER
from remote_tool.workflows.agent_sources import CARRIER, ENTRY, carried_files, source_archive

if TYPE_CHECKING:
    from remote_tool.config.model import Config

NO_PROJECT, NO_SUPERVISOR, NO_PYTHON, NO_PYTHON_AT_ALL, NO_SPACE = 96, 97, 98, 95, 94
# These operations run with any Python of the server if ours is missing, as in an unfinished environment.
ANY_PYTHON = "clean"
# These need nothing on a server but a Python: where it is not prepared, the agent runs from memory.
ANYWHERE = {"bandwidth_connect", "bandwidth_listen", "bare_shell", "gpus", "own_addresses", "top"}
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
# to its second: servers with a shared home may do so at the same time, and an existing non-empty folder is kept.
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


def control_script(config: Config, operation: str, *, is_carried: bool) -> str:
    """Return the shell script that starts the control program: from its folder, or from memory."""
    folder = f"supervisor-{source_archive()[0]}"
    if is_carried:
        enter = _ENTER_ANYWHERE if operation in ANYWHERE else _enter(config, operation)
        program = f'-c {shlex.quote(CARRIER)} {len(carried_files())} "$PWD/{folder}"'
        # Started from memory, it cannot start itself again without the mark of a job around it.
        return f"{enter}unset {JOB_MARKER}\n{_START} {program}\n"
    if operation in ANYWHERE:
        begin = f'cd "$HOME"/{shlex.quote(config.remote.scripts)} 2>/dev/null && [ -x ./python ] && python=./python'
        return f"{begin} && [ -d {folder} ] || exit {NO_SUPERVISOR}\n{_START} {folder}/{ENTRY}\n"
    found = f"[ -d {folder} ] || exit {NO_SUPERVISOR}\n"
    return f"{_enter(config, operation)}{found}{_START} {folder}/{ENTRY}\n"


def install_script(config: Config, operation: str) -> str:
    """Return the script that stores the files of its stdin as this version of the agent, all of them or none."""
    folder = f"supervisor-{source_archive()[0]}"
    return (
        f"{_enter(config, operation)}"
        "umask 077\n"
        f"new={folder}.new.{secrets.token_hex(8)}\n"
        f"trap 'rm -rf \"$new\"' EXIT\n"
        f'"$python" -I -S -c {shlex.quote(_UNPACK)} "$new" {folder}\n'
    )


def _enter(config: Config, operation: str) -> str:
    """Return the lines that change to our folder and find our Python, or any Python if the operation allows."""
    begin = f'cd "$HOME"/{shlex.quote(config.remote.scripts)} || exit {NO_PROJECT}\npython=./python\n'
    if operation == ANY_PYTHON:
        return f"{begin}ours=./python\n{_FIND_PYTHON}"
    # Without its record, the environment is half-made: what needs none runs all the same.
    needed = " && [ -s activation.json ]" if operation in {"run", "shell"} else ""
    return f'{begin}[ -x "$python" ]{needed} || exit {NO_PYTHON}\n'
