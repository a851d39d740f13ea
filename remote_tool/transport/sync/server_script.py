"""The scripts of a sync on the server: the shell scripts in the folder ``scripts``, what is said to them, and answers.

A sync is one script on one channel. It says what the server has, answers requests, runs rsync and records the result;
why it is no operation of the agent is in docs/architecture.md.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.protocol.records import is_job_id
from remote_tool.transport.sync.entries import ARRIVING
from remote_tool.transport.sync.server_state import COMPLETE, SIZE, TIME

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
# rsync keeps partial files in this folder beside the target: with a folder elsewhere, releases since
# CVE-2026-43619 (such as Debian's 3.2.7-1+deb12u6) do not find them again, and each further attempt fails.
PARTIAL_FOLDER = ".remote-tool-partial"
# Requests: which files exist, in two ways, and the digests of files.
LOOK, LOOK_SLOWLY, HASH = "look", "look-slowly", "hash"
APPEND = "append"
# The project folder, which every complete answer contains: without it, the server lacks a tool.
_SENTINEL = b"0 0 .\0"
_HEX = re.compile(rb"[0-9a-f]{1,8}")
_ROOM = re.compile(rb"//([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,9})\0")
_FOLDER = Path(__file__).with_name("scripts")


def receive_script(remote: RemotePaths, attempt: Attempt, known: Sequence[KnownCopy], *, dry_run: bool) -> str:
    """Return the script of a sync: lock the server's copy, report its files, receive, and record the result.

    It first prints the state, and exits if the copy is up to date. If the attempt has no snapshot id yet, it compares
    the copy and then waits for :func:`snapshot_words` before it locks anything. Then it answers requests, see
    :func:`question` and :func:`relay_words`, and reads one line: the options of rsync, see
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
    variables = _assign(REMOVE_EACH=script_text("remove_each"))
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


def question(kind: str, records: bytes, *, of_all: bool = False) -> bytes:
    """Return the lines that ask which files exist, or for their digests.

    Args:
        kind: ``LOOK``, ``LOOK_SLOWLY`` for servers that lack tools for it, or ``HASH``.
        records: As in the list of sent files; for ``HASH``, names.
        of_all: Whether to include the files of the server's own list.
    """
    if kind != HASH:
        records += _SENTINEL
    return f"{kind} {len(records)} {'all' if of_all else 'these'}\n".encode() + records


def append_words(name: bytes, data: bytes) -> bytes:
    """Return the request to append data to an existing file; its name has no newline."""
    return b"%s %d %b\n%b" % (APPEND.encode(), len(data), name, data)


def again_words(attempt: Attempt) -> bytes:
    """Return the line after which the script answers requests again, once rsync has ended."""
    # The newline ends what rsync may have left unread.
    return f"\nagain {attempt.mark}\n".encode()


def commit_words(attempt: Attempt, sent_size: int, stale_size: int, *, all_sent: bool) -> bytes:
    """Return the line that confirms that the local rsync succeeded; the sent list and stale records follow.

    Args:
        attempt: This sync.
        sent_size: Size of the sent list in bytes.
        stale_size: Size of the stale records in bytes.
        all_sent: Whether the copy is complete; if not, it stays recorded as incomplete.
    """
    # The newline ends what rsync may have left unread.
    return f"\ncommit {attempt.mark} {sent_size} {stale_size} {COMPLETE if all_sent else ''}\n".encode()


class Found(NamedTuple):
    """A file on the server; its time is in seconds, as rsync compares it."""

    mode: int
    size: int
    modified: int

    def line(self, name: bytes) -> bytes:
        """Return the line that the server prints for it, as :attr:`Entry.look`; the target of a link is unknown."""
        if stat.S_ISDIR(self.mode):
            return b"%x ./%b\0" % (self.mode, name)
        return b"%x %d %d ./%b\0" % (*self, name)


def parse_found(answer: bytes) -> dict[bytes, Found] | None:
    """Parse which files exist; a folder also appears with a trailing slash. None: the server lacks a tool."""
    found = {}
    for line in answer.split(b"\0"):
        words = line.split(b" ", 3)
        if len(words) == len(("mode", "size", "time", "name")) and _HEX.fullmatch(words[0]):
            mode, size, modified, name = words
            if SIZE.fullmatch(size) and TIME.fullmatch(modified) and name.startswith(b"./"):
                found[name[2:]] = Found(int(mode, 16), int(size), int(modified))
    return found if found.pop(b".", None) else None


def parse_hashes(answer: bytes) -> dict[bytes, str]:
    """Parse the SHA-256 of files, by name."""
    pairs = (line.partition(b" ") for line in answer.split(b"\0"))
    return {name: digest.decode(errors="replace") for digest, _, name in pairs if name}


def parse_finish(answer: bytes) -> tuple[list[str], list[str]]:
    """Parse the end of a sync: the names of removed files, and the ids of running jobs."""
    names = [os.fsdecode(name) for name in answer.split(b"\0") if name]
    removed = [name for name in names if not name.startswith("/")]
    return removed, [name[1:] for name in names if is_job_id(name[1:]) and name.startswith("/")]


def parse_room(answer: bytes) -> tuple[int, int] | None:
    """Parse the free bytes and the size of the server's disk at the end of a sync; None: not reported."""
    found = _ROOM.search(answer)
    if found is None:
        return None
    free, every, block = (int(number) for number in found.groups())
    return free * block, every * block


def _common(remote: RemotePaths, attempt: Attempt) -> str:
    return _assign(
        PROJECT=remote.project,
        SCRIPTS=remote.scripts,
        STATE=remote.sync_state,
        SENT=remote.sent_files,
        OWNER_FILE=remote.sync_owner,
        SNAPSHOT=attempt.snapshot_id,
        MARK=attempt.mark,
        PARTIAL_FOLDER=PARTIAL_FOLDER,
    )


def _assign(**values: str | int) -> str:
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


@cache
def script_text(name: str) -> str:
    """Return a script of this package without its comments."""
    lines = (_FOLDER / f"{name}.sh").read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#") and line.strip())
