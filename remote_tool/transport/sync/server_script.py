"""The scripts of a sync on the server, made of the shell scripts in the folder ``scripts``."""

from __future__ import annotations

import shlex
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.transport.sync.entries import ARRIVING
from remote_tool.transport.sync.server_finish import PARTIAL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.sync.last_sync import KnownCopy
    from remote_tool.transport.sync.server_state import Attempt

NO_RSYNC = 127
CANNOT_USE = 3
CANNOT_WRITE = 11
# Not an exit status of rsync.
LOCKED = 95
WAITING = "waiting: "
ELSEWHERE = "elsewhere: "
# Seconds to wait for another sync.
PATIENCE = 600
# Where rsync may be installed outside the short PATH of a session without a terminal; relative to the home folder.
PLACES = ("/usr/local/bin", "/opt/homebrew/bin", ".local/bin", "miniconda3/bin", "miniforge3/bin")
# Where Linux lets a program open its own streams again.
STREAMS = "/proc/self/fd"
RELAY = "relay"
_FOLDER = Path(__file__).with_name("scripts")


def receive_script(remote: RemotePaths, attempt: Attempt, known: Sequence[KnownCopy], *, dry_run: bool) -> str:
    """Return the script of a sync: lock the server's copy, report its files, receive, and record the result.

    It first prints the state, and exits if the copy is up to date. If the attempt has no snapshot id yet, it compares
    the copy and then waits for :func:`snapshot_words` before it locks anything. Then it answers requests, see
    :mod:`server_questions` and :func:`relay_words`, and reads one line: the options of rsync, see
    :func:`receive_words`, or an empty one. It prints the exit status of rsync and reads another line: after
    :func:`again_words` it answers requests and runs rsync once more; after :func:`commit_words`, following a success,
    the copy is complete, which the start of a job relies on.

    Args:
        remote: The folders.
        attempt: This sync.
        known: States in which the copy may be.
        dry_run: Change nothing and create no folders.
    """
    variables = _assign(
        DRY_RUN=int(dry_run) or "",
        ENVIRONMENT=remote.environment,
        PROGRAMS=remote.programs,
        SCRIPTS_NAME=remote.scripts_name,
        JOBS_NAME=remote.jobs_name,
        LOCK=remote.sync_lock,
        OWNER=attempt.owner,
        WORKSPACE=attempt.workspace,
        WORKSPACES=remote.workspaces,
        PATIENCE=PATIENCE,
        PLACES=" ".join(PLACES),
        STREAMS=STREAMS,
        NO_RSYNC=NO_RSYNC,
        CANNOT_USE=CANNOT_USE,
        CANNOT_WRITE=CANNOT_WRITE,
        LOCKED=LOCKED,
        LIST_EACH=script_text("list_each"),
        HASH_EACH=script_text("hash_each"),
    )
    states = " ".join(map(_words_of, known))
    steps = [_common(remote, attempt), variables, f"set -- {states}\n", script_text("receive")]
    return "".join(steps if dry_run else [*steps, _commit(remote)])


def finish_script(remote: RemotePaths, attempt: Attempt) -> str:
    """Return the script that finishes a sync if the script of :func:`receive_script` could not read its stdin."""
    return f"state= word=\n{_common(remote, attempt)}{_commit(remote)}"


def _commit(remote: RemotePaths) -> str:
    variables = _assign(PARTIAL_FOLDER=PARTIAL_FOLDER, REMOVE_EACH=script_text("remove_each"))
    return f"{variables}{script_text('commit')}{running_script(remote)}"


def workspaces_script(remote: RemotePaths) -> str:
    """Return the script that prints the record of the last sync, then which workspaces have sent the project."""
    state, owner, workspaces = map(shlex.quote, (remote.sync_state, remote.sync_owner, remote.workspaces))
    return f"""\
cd "$HOME" || exit 1
[ -e {state} ] || exit 0
IFS= read -r state < {state}
printf '%s\\n' "$state"
[ ! -e {workspaces} ] || exec cat {workspaces}
{{ read -r since who < {owner}; }} 2>/dev/null
printf 'unknown %s\\n' "$who"
"""


def running_script(remote: RemotePaths) -> str:
    """Return the script that prints the ids of running jobs."""
    return _assign(JOBS=remote.jobs) + script_text("running_jobs")


def remove_script(remote: RemotePaths) -> str:
    """Return the script that removes the files in its stdin's records, and prints their names."""
    variables = _assign(PROJECT=remote.project, REMOVE_EACH=script_text("remove_each"))
    return f'{variables}cd "$HOME/$PROJECT" || exit 1\nxargs -0 -n 500 sh -c "$REMOVE_EACH" sh 3>/dev/null\n'


def relay_words(version: str, request: bytes) -> bytes:
    """Return the request to the control program of this version, which runs under the same lock as rsync."""
    return f"{RELAY}\nsupervisor-{version}\n".encode() + request


def snapshot_words(copy: KnownCopy, *, compare: bool, again: bool = False) -> bytes:
    """Return the line with the snapshot to send.

    Args:
        copy: The copy of a server that has it.
        compare: Whether the server recognizes such a copy.
        again: Whether the server compares its copy again, because the last comparison is too old.
    """
    return f"{int(again)} {_words_of(copy) if compare else copy.snapshot_id}\n".encode()


def _words_of(copy: KnownCopy) -> str:
    return f"{copy.snapshot_id} {copy.sent_size} {copy.digest}"


def receive_words(arguments: Sequence[str], into: bytes = b"", mode: int | None = None) -> bytes:
    """Return the line that starts rsync.

    Args:
        arguments: From the local rsync: --server, options, a period, the destination; empty: do not run rsync.
        into: A folder of the project, to receive into it; the whole project if empty.
        mode: Permissions to give to that folder.
    """
    permissions = "-" if mode is None else f"{stat.S_IRWXU | mode & ARRIVING:o}"
    place = b"into %b %d\n%b" % (permissions.encode(), len(into), into) if into else b""
    return place + shlex.join(arguments[:-1]).encode() + b"\n"


def again_words(attempt: Attempt) -> bytes:
    """Return the line after which the script answers requests again, once rsync has ended."""
    # The newline ends what rsync may have left unread.
    return f"\nagain {attempt.mark}\n".encode()


def _common(remote: RemotePaths, attempt: Attempt) -> str:
    return _assign(
        PROJECT=remote.project,
        SCRIPTS=remote.scripts,
        STATE=remote.sync_state,
        SENT=remote.sent_files,
        OWNER_FILE=remote.sync_owner,
        SNAPSHOT=attempt.snapshot_id,
        MARK=attempt.mark,
    )


def _assign(**values: str | int) -> str:
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


@cache
def script_text(name: str) -> str:
    """Return a script of this package without its comments."""
    lines = (_FOLDER / f"{name}.sh").read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#") and line.strip())
