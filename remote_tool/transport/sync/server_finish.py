"""The end of a sync on the server: remove stale files, and record the new state."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from remote_tool.protocol.records import is_job_id
from remote_tool.transport.sync.server_state import COMPLETE

if TYPE_CHECKING:
    from remote_tool.paths import RemotePaths
    from remote_tool.transport.sync.server_state import Attempt

OVERTAKEN = 94  # not an exit status of rsync
# rsync keeps partial files in this folder beside the target: with a folder elsewhere, releases since
# CVE-2026-43619 (such as Debian's 3.2.7-1+deb12u6) do not find them again, and each further attempt fails.
PARTIAL_FOLDER = ".remote-tool-partial"
_ROOM = re.compile(rb"//([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,9})\0")


def finish_script(remote: RemotePaths, attempt: Attempt) -> str:
    """Return the script that finishes a sync if the script of :func:`receive_script` could not read its stdin."""
    before = f"cd \"$HOME\" || exit 1; status=0 found= wanted='{COMPLETE} {attempt.snapshot_id}'"
    return "\n".join([before, *finish_lines(remote, attempt), ""])


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


def finish_lines(remote: RemotePaths, attempt: Attempt) -> list[str]:
    """Remove stale files, record the sent files, and mark the copy as complete.

    Prints the answer for :func:`parse_finish`. Fails if another sync has started in the meantime.
    """
    project, scripts = shlex.quote(remote.project), shlex.quote(remote.scripts)
    halves = f'find "$HOME"/{project} -type d -name {PARTIAL_FOLDER} -prune -exec rm -rf {{}} +'
    files = (remote.sent_files, remote.sync_state, remote.sync_owner)
    sent, state, owner = (shlex.quote(path.rpartition("/")[2]) for path in files)
    return [
        # 24: some files vanished before they were sent.
        'case $status in 0 | 24) status=0;; *) exit "$status";; esac',
        'word=; while [ "$word" != ' + f"'commit {attempt.mark}'" + " ]; do",
        '  read -r word mark sent_size stale_size all_sent || exit 1; word="$word $mark"',
        "done",
        f'umask 077; cd "$HOME"/{scripts} || exit 1',
        # A lost connection may end stdin early: the size shows it.
        'all=.sent.$$; trap \'[ ! -e "$all" ] || rm -f "$all" "$all.new" "$all.stale"\' EXIT',
        "trap 'exit 1' HUP PIPE TERM",
        'cat > "$all" || exit 1',
        f"now=; {{ IFS= read -r now < {state}; }} 2>/dev/null",
        f"if [ \"$now\" != '{attempt.incomplete}' ]; then",
        f"  since= who=somebody; {{ read -r since who < {owner}; }} 2>/dev/null",
        f'  echo "$who has started another sync here" >&2; exit {OVERTAKEN}',
        "fi",
        '[ "$(wc -c < "$all")" -eq $((sent_size + stale_size)) ] || { echo "the transfer was cut off" >&2; exit 1; }',
        'if [ "$stale_size" -gt 0 ]; then',
        '  head -c "$sent_size" "$all" > "$all.new" && tail -c "+$((sent_size + 1))" "$all" > "$all.stale" || exit 1',
        f'  (cd "$HOME"/{project} && {_remove_from("""< "$OLDPWD/$all.stale" """)})',
        '  rm -f "$all.stale"; mv -f "$all.new" "$all" || exit 1',
        "fi",
        f'mv -f "$all" {sent} || exit 1',
        # Parts from an earlier sync may remain where this sync did not send the file.
        f'case "$found" in {COMPLETE}*) ;; *) {halves};; esac 2>/dev/null',
        '[ ! -e partial ] || rm -rf partial; [ -z "$all_sent" ] || echo "$wanted" > ' + state,
        running_script(remote),
        # Without GNU stat, free space is not reported.
        "room=$(stat -f -c '%a %b %S' . 2>/dev/null) && printf '//%s\\0' \"$room\"",
        ":",
    ]


def remove_script(remote: RemotePaths) -> str:
    """Return the script that removes the files in its stdin's records, and prints their names."""
    return f'cd "$HOME"/{shlex.quote(remote.project)} || exit 1\n{_remove_from("")}\n'


def _remove_from(source: str) -> str:
    return f"xargs -0 -n 500 sh -c {shlex.quote(_REMOVE)} sh {source}"


# Each argument is "size time name" as sent. Files that have changed since, or are behind a link, stay.
_REMOVE = r"""
if stat -c %s . >/dev/null 2>&1; then look() { stat -c "%s %Y" "$1"; }; else look() { stat -f "%z %m" "$1"; }; fi
for record; do
  size=${record%% *}; rest=${record#* }; modified=${rest%% *}; name=${rest#* }
  parent=$name; linked=
  while case $parent in */?*) :;; *) false;; esac; do
    parent=${parent%/*}; [ -L "./$parent" ] && linked=1
  done
  [ -z "$linked" ] || continue
  case $name in */) rmdir "./${name%/}" 2>/dev/null; continue;; esac
  [ -f "./$name" ] || [ -L "./$name" ] || continue
  [ "$(look "./$name" 2>/dev/null)" = "$size $modified" ] || continue
  rm -f "./$name" && printf "%s\0" "$name"
done
:
"""
# A running job's supervisor locks this file until the job's end is recorded; lost jobs leave it behind. With more
# files than this, one Python process checks them all, because a flock for each would take longer than the sync.
_FEW_JOBS = 16
_LOCKED_JOBS = """
import fcntl, os, sys
for path in sys.stdin.buffer.read().split(b"\\0")[:-1]:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        continue
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.stdout.buffer.write(b"/%s\\0" % path.split(b"/")[-2])
    os.close(file)
"""


def running_script(remote: RemotePaths) -> str:
    """Return the script that prints the id of each running job, with a slash before it and a NUL after it."""
    return "\n".join(
        [
            f'set -- "$HOME"/{shlex.quote(remote.jobs)}/*/reserve',
            f"if [ $# -gt {_FEW_JOBS} ] && command -v python3 >/dev/null; then",
            f"  printf '%s\\0' \"$@\" | python3 -I -S -c {shlex.quote(_LOCKED_JOBS)}",
            "else",
            "  for reserve do",
            '    if [ -e "$reserve" ] && ! flock -n "$reserve" true 2>/dev/null; then',
            '      job=${reserve%/reserve}; printf "/%s\\0" "${job##*/}"',
            "    fi",
            "  done",
            "fi",
        ]
    )


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
