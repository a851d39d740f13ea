"""The user's setup script: the shell of a command sources it first, and runs the command only when it went well."""

from __future__ import annotations

import os

FILE = "setup"
# It appears in the job's folder, which is the same behind a launch command and in a container.
DONE = "setup-done"
_WHAT = "the command did not run: the setup script (setup: in configs.yaml)"


def put_before_job(command: str) -> str:
    """Return a job's command for the shell that sources the file in the job's folder first, and tells how that went.

    The command's lines keep their numbers.
    """
    # No || or && around the script: in such a list the shell would not obey its "set -e".
    folder = '"${0%/*}"'
    return f". {folder}/{FILE}; case $? in 0) : >{folder}/{DONE} || exit;; *) exit;; esac; {command}"


def put_before_attached(command: str, setup: str) -> str:
    """Return an attached command for the shell that runs a setup script first, and says on stderr when that failed."""
    mark = f"setup-{os.urandom(16).hex()}"
    say = f'echo "remote-tool: {_WHAT} ended with exit code $status" >&2'
    lines = [
        f"trap 'status=$?; {say}; [ $status != 0 ] || status=1; exit $status' EXIT",
        f". /dev/fd/7 7<<'{mark}'",
        setup,
        mark,
        "case $? in 0) trap - EXIT;; *) exit;; esac",
        command,
    ]
    return "\n".join(lines)


def describe_failure(how: str) -> str:
    """Say that it failed; ``how`` goes on after a name: ended with exit code 1."""
    return f"{_WHAT} {how}"
