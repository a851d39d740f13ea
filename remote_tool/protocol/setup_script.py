"""The user's setup script: the shell of a command sources it first, and runs the command only when it went well."""

from __future__ import annotations

import os

from remote_tool.protocol.marks import PROJECT_MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

FILE = "setup"
# It appears in the job's folder, which is the same behind a launch command and in a container.
DONE = "setup-done"
_WHAT = "the command did not run: the setup script (setup: in configs.yaml)"


def put_before_job(command: str, workdir: str = "") -> str:
    """Return a job's command for the shell that sources the file in the job's folder first, and tells how that went.

    The command's lines keep their numbers. The script begins in the project's folder, wherever the command does.
    """
    # No || or && around the script: in such a list the shell would not obey its "set -e".
    folder = '"${0%/*}"'
    there, back = _around(workdir)
    return f"{there}. {folder}/{FILE}; case $? in 0) : >{folder}/{DONE} || exit;; *) exit;; esac; {back}{command}"


def put_before_attached(command: str, setup: str, workdir: str = "") -> str:
    """Return an attached command for the shell that runs a setup script first, and says on stderr when that failed."""
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
    """Return what leads to the project's folder, and from there to the working folder."""
    if not workdir:
        return "", ""
    quoted = "'" + workdir.replace("'", "'\\''") + "'"
    project = f'cd "${PROJECT_MARKER}"'
    return f"{project} || exit; ", f"{project}/{quoted} || exit; "


def describe_failure(how: str) -> str:
    """Say that it failed; ``how`` goes on after a name: ended with exit code 1."""
    return f"{_WHAT} {how}"
