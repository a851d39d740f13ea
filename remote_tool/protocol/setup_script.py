"""The user's setup script: a command's shell sources it first, and runs the command only if it succeeded."""

from __future__ import annotations

import os

from remote_tool.protocol.marks import PROJECT_MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

FILE = "setup"
# Relative to the job's folder, which is the same behind a launch command and in a container.
DONE = "setup-done"
_WHAT = "the command did not run: the setup script (setup: in configs.yaml)"


def put_before_job(command: str, workdir: str = "") -> str:
    """Return a shell script that sources the file in the job's folder, records its success, and runs the command.

    The command's line numbers do not change. The script starts in the project's folder, wherever the command does.
    """
    # No || or && around the script: in such a list the shell would ignore its "set -e".
    folder = '"${0%/*}"'
    there, back = _around(workdir)
    return f"{there}. {folder}/{FILE}; case $? in 0) : >{folder}/{DONE} || exit;; *) exit;; esac; {back}{command}"


def put_before_attached(command: str, setup: str, workdir: str = "") -> str:
    """Return a shell script that runs a setup script, then an attached command, and reports failure on stderr."""
    there, back = _around(workdir)
    mark = f"setup-{os.urandom(16).hex()}"
    say = f'echo "remote-tool: {_WHAT} ended with exit code $status" >&2'
    lines = [
        f"trap 'status=$?; {say}; [ $status != 0 ] || status=1; exit $status' EXIT",
        f"{there}. /dev/fd/7 7<<'{mark}'",
        setup,
        mark,
        "case $? in 0) trap - EXIT;; *) exit;; esac",
        back + command,
    ]
    return "\n".join(lines)


def _around(workdir: str) -> Tuple[str, str]:
    """Return commands that change to the project's folder, and from there to the working folder."""
    if not workdir:
        return "", ""
    quoted = "'" + workdir.replace("'", "'\\''") + "'"
    project = f'cd "${PROJECT_MARKER}"'
    return f"{project} || exit; ", f"{project}/{quoted} || exit; "


def describe_failure(how: str) -> str:
    """Describe a failure; ``how`` continues after a name: ended with exit code 1."""
    return f"{_WHAT} {how}"
