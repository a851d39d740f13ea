"""The script of a sync on the server: report its files, run the server's rsync, and record the result."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remote_tool.transport.sync.last_sync import look_script
from remote_tool.transport.sync.server_finish import finish_lines
from remote_tool.transport.sync.server_questions import CANNOT_WRITE, answer_lines
from remote_tool.transport.sync.server_state import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.sync.last_sync import KnownCopy
    from remote_tool.transport.sync.server_state import Attempt

NO_RSYNC = 127
CANNOT_USE = 3
# Not an exit status of rsync.
LOCKED = 95
WAITING = "waiting: "
# Seconds to wait for another sync.
PATIENCE = 600
# Where rsync may be installed outside the short PATH of a session without a terminal.
PLACES = ("/usr/local/bin", "/opt/homebrew/bin", "$HOME/.local/bin", "$HOME/miniconda3/bin", "$HOME/miniforge3/bin")
# Arguments per mv after a first sync, because starting mv takes longer than all of its renames.
MOVED_AT_ONCE = 200
# Where Linux lets a program open its own streams again.
STREAMS = "/proc/self/fd"
RELAY = "relay"
_IF_BARE = 'see_whether_bare; [ -z "$bare" ] || same=-'


def state_script(remote: RemotePaths, mark: str) -> str:
    """Return the script that lists sent files; :func:`parse_state` reads its output before the mark."""
    tell = [*_read_state(remote), *_print_state(remote, mark, ["same=0"])]
    return "\n".join(['cd "$HOME" || exit', *tell, ""])


def _read_state(remote: RemotePaths) -> list[str]:
    state = shlex.quote(f"./{remote.sync_state}")
    return ["state=", f"{{ IFS= read -r state < {state}; }} 2>/dev/null"]


def _print_state(remote: RemotePaths, mark: str, look: Sequence[str]) -> list[str]:
    """Print the state, whether the copy matches it, and the useful part of the list of sent files."""
    sent = shlex.quote(f"./{remote.sent_files}")
    return [
        *look,
        'printf \'%s\\n%s\\n\' "$state" "$same"',
        'case "$same $state" in',
        '  1*) tail -c "+$((size + 1))" ' + f"{sent};;",
        f"  *) cat {sent};;",
        "esac 2>/dev/null",
        f"printf '\\000\\000%s \\n' {mark}",
    ]


def receive_script(
    remote: RemotePaths, attempt: Attempt, known: Sequence[KnownCopy], *, dry_run: bool, relayed: bool = False
) -> str:
    """Return the script of a sync: lock the server's copy, report its files, receive, and record the result.

    It first prints the state, and exits if the copy is up to date. Then it answers questions, see :func:`question`, and
    reads one line: the options of rsync, see :func:`receive_words`, or an empty one. It prints the exit status of rsync
    and, after a success, reads another line, see :func:`commit_words`: only then is the copy complete, which the start
    of a job relies on.

    Args:
        remote: The folders.
        attempt: This sync.
        known: States in which the copy may be: first that of the wanted snapshot.
        dry_run: Change nothing and create no folders.
        relayed: Allow requests to the control program to fetch files before rsync; see :func:`relay_words`.
    """
    project, scripts = shlex.quote(remote.project), shlex.quote(remote.scripts)
    state = f'"$HOME"/{shlex.quote(remote.sync_state)}'
    places = " ".join(f'"{place}"' for place in PLACES) + f' "$HOME"/{shlex.quote(remote.environment)}/bin'
    alone = [
        # Each program that is not started saves a millisecond on the server.
        f"[ -d {scripts} ] || {{ mkdir -p -- {project} && (umask 077; mkdir -p -- {scripts}); }} || exit {CANNOT_USE}",
        *_wait_for_others(remote, attempt),
    ]
    return "\n".join(
        [
            f'cd "$HOME" || exit {CANNOT_USE}',
            "rsync=; if command -v rsync >/dev/null; then rsync=rsync; fi",
            f'for place in {places}; do [ -n "$rsync" ] || {{ [ -x "$place/rsync" ] && rsync=$place/rsync; }}; done',
            f'[ -n "$rsync" ] || exit {NO_RSYNC}',
            *([] if dry_run else [*alone, *_promote(remote)]),
            f"wanted='{COMPLETE} {attempt.snapshot_id}'",
            *_see_whether_bare(remote),
            *_read_state(remote),
            "found=$state",
            *_print_state(remote, attempt.mark, [*look_script(remote, known), _IF_BARE]),
            '[ "$same $state" != "1 $wanted" ] || exit 0',
            "IFS= read -r words || exit 1",
            *answer_lines(remote, attempt),
            *([] if dry_run else [f"echo '{attempt.incomplete}' > {state} || exit {CANNOT_WRITE}"]),
            *(_relay(remote, attempt) if relayed else []),
            *_receive(remote, dry_run=dry_run),
            f'printf \'\\000\\000%s %s %s\\n\' {attempt.mark} "$status" "$stdin_shared"',
            *([] if dry_run else ['[ -n "$stdin_shared" ] || exit "$status"', *finish_lines(remote, attempt)]),
            'exit "$status"',
            "",
        ]
    )


def relay_words(version: str, request: bytes) -> bytes:
    """Return the request to the control program of this version; its answer ends with the mark."""
    return f"{RELAY}\nsupervisor-{version}\n".encode() + request


def _relay(remote: RemotePaths, attempt: Attempt) -> list[str]:
    """Run the control program under the same lock, once the copy is marked as incomplete, as for rsync."""
    # If the script uses another folder as the home folder, this variable has the real one.
    home = '"${remote_tool_home:-$HOME}"'
    scripts = f"{home}/{shlex.quote(remote.programs)}"
    return [
        f'while [ "$words" = {RELAY} ]; do',
        "  IFS= read -r program || exit 1",
        f'  if [ -x {scripts}/python ] && [ -d {scripts}/"$program" ]; then',
        f'    (cd {scripts} && HOME={home} REMOTE_TOOL_SUPERVISOR=1 exec ./python -I -S "$program"/run_control.py)',
        "  else",
        "    IFS= read -r request || exit 1",
        "  fi",
        f"  printf '\\000\\000%s \\n' {attempt.mark}",
        "  IFS= read -r words || exit 1",
        "done",
    ]


def receive_words(arguments: Sequence[str]) -> bytes:
    """Return the line that starts rsync.

    Args:
        arguments: From the local rsync: --server, options, a period, the destination; empty: do not run rsync.
    """
    return shlex.join(arguments[:-1]).encode() + b"\n"


def _promote(remote: RemotePaths) -> list[str]:
    """Move files that a first sync received into the project; the status says whether all could be moved."""
    project, arriving = (f'"$HOME"/{shlex.quote(path)}' for path in (remote.project, f"{remote.scripts}/arriving"))
    return [
        f"project={project} arriving={arriving}",
        "promote() {",
        "  left=0; set --",
        '  for each in "$arriving"/* "$arriving"/.[!.]* "$arriving"/..?*; do',
        '    [ -e "$each" ] || [ -L "$each" ] || continue',
        # Files that appeared in the meantime belong to somebody else: mv would move into such a folder.
        '    if [ -e "$project/${each##*/}" ]; then left=1; else set -- "$@" "$each"; fi',
        f'    [ $# -lt {MOVED_AT_ONCE} ] || {{ mv -- "$@" "$project/" || left=1; set --; }}',
        "  done",
        '  [ $# -eq 0 ] || mv -- "$@" "$project/" || left=1',
        '  mode=$(stat -c %a "$arriving" 2>/dev/null || stat -f %Lp "$arriving") && chmod "$mode" "$project"',
        '  rm -rf "$arriving"; return "$left"',
        "}",
        # Left by an interrupted first sync; a file that only looks like rsync's partial files is sent again.
        'if [ -e "$arriving" ]; then',
        """  find "$arriving" -type f -name '.*.??????' -exec rm -f {} +; promote""",
        "fi",
    ]


def _see_whether_bare(remote: RemotePaths) -> list[str]:
    """Define a function that sets ``bare`` if the project folder holds only files of remote-tool."""
    ours = " | ".join(shlex.quote(name) for name in (remote.scripts_name, remote.jobs_name))
    return [
        f'project="$HOME"/{shlex.quote(remote.project)}',
        "see_whether_bare() {",
        "  bare=1",
        '  for each in "$project"/* "$project"/.[!.]* "$project"/..?*; do',
        f"    case ${{each##*/}} in {ours}) continue;; esac",
        '    if [ -e "$each" ] || [ -L "$each" ]; then bare=; return; fi',
        "  done",
        "}",
    ]


def _receive(remote: RemotePaths, *, dry_run: bool) -> list[str]:
    """Run rsync with a temporary folder outside the project, so that a killed rsync leaves nothing in the project.

    Such a folder costs a rename between folders for each file, which takes as long as everything else. If the project
    is empty, all files are received there and moved at once.
    """
    beside = [
        '  see_whether_bare; if [ -n "$bare" ]; then',
        "    there=$arriving",
        f'    (umask 077; mkdir -- "$arriving") || exit {CANNOT_WRITE}',
        "  else",
        # openrsync, which macOS and the BSDs may have, does not support a temporary folder.
        f'    if [ -e {STREAMS} ]; then version=; else version=$("$rsync" --version 2>/dev/null); fi',
        '    case "$version" in',
        "      *openrsync*) ;;",
        '      *) (umask 077; mkdir -p "$partial") && beside=--temp-dir=$partial;;',
        "    esac",
        "  fi",
    ]
    promote = [
        '  if [ "$there" = "$arriving" ]; then case $status in 0 | 24)',
        '    promote || { echo "other files appeared in the project during the sync" >&2; status='
        + str(CANNOT_WRITE)
        + "; };;",
        "  esac; fi",
    ]
    return [
        f'partial="$HOME"/{shlex.quote(remote.scripts + "/partial")} beside= status=0',
        f'there="$HOME"/{shlex.quote(remote.project)}',
        # rsync makes its streams nonblocking, which a shell cannot read: it gets open files of its own.
        f"if (: < {STREAMS}/0 && : > {STREAMS}/1) 2>/dev/null; then stdin_shared=1; else stdin_shared=; fi",
        'if [ -n "$words" ]; then',
        *([] if dry_run else beside),
        '  eval "set -- $words"',
        # The first argument is --server.
        "  first=$1; shift",
        '  set -- "$first" ${beside:+"$beside"} "$@" "$there"/',
        f'  if [ -n "$stdin_shared" ]; then "$rsync" "$@" < {STREAMS}/0 > {STREAMS}/1; else "$rsync" "$@"; fi',
        "  status=$?",
        *([] if dry_run else promote),
        '  [ -z "$beside" ] || rmdir "$partial" 2>/dev/null',
        "fi",
    ]


def _wait_for_others(remote: RemotePaths, attempt: Attempt) -> list[str]:
    """Lock, or name the sync to wait for. rsync inherits the lock, and keeps it if it outlives its client."""
    lock, owner = (f'"$HOME"/{shlex.quote(path)}' for path in (remote.sync_lock, remote.sync_owner))
    return [
        f"(umask 077; : >> {lock}) && exec 9>>{lock} || exit {CANNOT_WRITE}",
        "began=$(date +%s)",
        "if command -v flock >/dev/null; then",
        "  if ! flock -n 9; then",
        f"    since=$began who=somebody; {{ read -r since who < {owner}; }} 2>/dev/null",
        f'    echo "{WAITING}$who has been syncing here for $((began - since)) s" >&2',
        f"    until flock -n 9; do [ $(($(date +%s) - began)) -lt {PATIENCE} ] || exit {LOCKED}; sleep 0.2; done",
        "    began=$(date +%s)",
        "  fi",
        "fi",
        f'echo "$began "{shlex.quote(attempt.owner)} > {owner}',
    ]
