"""What a sync does on the server beside rsync itself: what was sent, what is stale, and whether the copy is whole."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.supervisor.records import is_job_id
from remote_tool.transport.known_copy import look_script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.paths import RemotePaths
    from remote_tool.transport.known_copy import KnownCopy
    from remote_tool.transport.snapshot import Snapshot

NO_RSYNC = 127
CANNOT_USE = 3
CANNOT_WRITE = 11
# Of our scripts, where rsync has no status.
OVERTAKEN, LOCKED = 94, 95
WAITING = "waiting: "
# Another sync is waited for this long, in seconds.
PATIENCE = 600
# Where the local rsync says it keeps half a file; the server's script puts the real folder in its place.
PARTIAL_FOLDER = "/remote-tool-partial"
# Where rsync may lie when the short PATH of a session without a terminal does not have it.
PLACES = ("/usr/local/bin", "/opt/homebrew/bin", "$HOME/.local/bin", "$HOME/miniconda3/bin", "$HOME/miniforge3/bin")
# Of what a first sync brought: each start of mv takes longer than all that it moves.
MOVED_AT_ONCE = 200
COMPLETE = "complete"
# Where Linux lets a program open its own streams once more.
STREAMS = "/proc/self/fd"
STAYS = "stays"
RELAY = "relay"
# Of a size or a time.
_NUMBER = re.compile(rb"-?[0-9]{1,20}")


@dataclass(frozen=True)
class SyncState:
    """What the server remembers of the last sync.

    Attributes:
        complete: The snapshot that it has whole; empty when the last sync did not finish or there was none.
        same: Whether all of that is there as it was sent; false when nobody looked.
        sent: Size and time of what we sent, by name; less what we know, and nothing for the wanted snapshot.
        begun: The same of a sync from here that was cut off; what of it the server has, nobody knows.
    """

    complete: str = ""
    same: bool = False
    sent: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    begun: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def names(self) -> Iterable[bytes]:
        """All that may be there because of us."""
        return self.sent.keys() | self.begun.keys()

    def versions(self, name: bytes) -> set[tuple[int, int]]:
        """Size and time that a file of ours may have."""
        return {known[name] for known in (self.sent, self.begun) if name in known}


@dataclass(frozen=True)
class Attempt:
    """One sync.

    Attributes:
        snapshot_id: What is sent.
        mark: Random; ends the answer to the first question, and tells this sync from every other.
        owner: Who sends, for others who wait.
    """

    snapshot_id: str
    mark: str
    owner: str = ""

    @property
    def incomplete(self) -> str:
        return f"incomplete {self.snapshot_id} {self.mark}"


@dataclass(frozen=True)
class Leftovers:
    """What was sent earlier and is not sent now.

    Attributes:
        stale: Gone here, so it may go there: files first, then folders from the deepest up.
        kept: Still here but not sent any more, so it stays there, and stays known as sent by us.
        blocking: Whether something stale lies where something of another kind must go.
    """

    stale: tuple[bytes, ...] = ()
    kept: tuple[bytes, ...] = ()
    blocking: bool = False

    @property
    def stale_files(self) -> list[bytes]:
        return [name for name in self.stale if not name.endswith(b"/")]


def find_leftovers(state: SyncState, snapshot: Snapshot) -> Leftovers:
    """Compare what was sent with what is to be sent, and with what is here."""
    present = snapshot.names
    stale, kept, blocking = [], [], False
    for name in state.names:
        if name in present:
            continue
        replaced = name.endswith(b"/") and name[:-1] in present
        blocking = blocking or replaced
        if replaced or not snapshot.has_here(name):
            stale.append(name)
        else:
            kept.append(name)
    stale.sort(key=lambda name: (name.endswith(b"/"), -name.count(b"/"), name))
    return Leftovers(tuple(stale), tuple(kept), blocking)


def state_script(remote: RemotePaths, mark: str) -> str:
    """Return the script that tells what was sent; :func:`parse_state` reads what comes before the mark."""
    tell = [*_read_state(remote), *_tell_state(remote, mark, ["same=0 wanted=-"])]
    return "\n".join(['cd "$HOME" || exit', *tell, ""])


def end_of_state(mark: str) -> bytes:
    """Return what ends the answer, and later what rsync says: no list of names has two NULs in a row."""
    return b"\0\0" + mark.encode() + b" "


def _read_state(remote: RemotePaths) -> list[str]:
    state = shlex.quote(f"./{remote.sync_state}")
    return ["state=", f"{{ IFS= read -r state < {state}; }} 2>/dev/null"]


def _tell_state(remote: RemotePaths, mark: str, look: Sequence[str]) -> list[str]:
    """Tell the state, whether the copy is as it says, and of the list of sent files what may be of use."""
    sent = shlex.quote(f"./{remote.sent_files}")
    return [
        *look,
        'printf \'%s\\n%s\\n\' "$state" "$same"',
        'case "$same $state" in',
        '  1*) tail -c "+$((size + 1))" ' + f"{sent};;",
        '  "0 $wanted") ;;',
        f"  *) cat {sent};;",
        "esac 2>/dev/null",
        f"printf '\\000\\000%s \\n' {mark}",
    ]


def parse_state(answer: bytes) -> SyncState:
    """Read the answer of :func:`state_script`; what is malformed counts as never sent."""
    first, _, rest = answer.partition(b"\n")
    same, _, records = rest.partition(b"\n")
    word, _, name = first.decode(errors="replace").partition(" ")
    return SyncState(name if word == COMPLETE else "", same == b"1", parse_records(records))


def parse_records(text: bytes) -> dict[bytes, tuple[int, int]]:
    """Read a list of sent files; what is malformed, or lies outside of the project, is left out."""
    sent = {}
    for record in text.split(b"\0"):
        size, _, others = record.partition(b" ")
        modified, _, path = others.partition(b" ")
        if _NUMBER.fullmatch(size) and _NUMBER.fullmatch(modified) and _is_inside(path):
            sent[path] = (int(size), int(modified))
    return sent


def _is_inside(name: bytes) -> bool:
    return bool(name) and not name.startswith(b"/") and b".." not in name.split(b"/")


def receive_script(
    remote: RemotePaths, attempt: Attempt, known: Sequence[KnownCopy], *, dry_run: bool, relayed: bool = False
) -> str:
    """Return the script of a sync, alone on this server: it tells what is there, receives, and remembers what it has.

    It tells of the state first, and ends when the copy is as it should be. Then it reads one line: the options of
    rsync, see :func:`receive_words`, or an empty one. It tells how rsync ended and, when that was well, reads another
    line, see :func:`whole_words`: only then the copy is whole, which every start of a job may know.

    Args:
        remote: The folders.
        attempt: This sync.
        known: How the copy may look, by what we know: first that of the wanted snapshot.
        dry_run: Change nothing, make no folder.
        relayed: Before rsync, the control program may be asked to bring files, see :func:`relay_words`.
    """
    project, scripts = shlex.quote(remote.project), shlex.quote(remote.scripts)
    state = f'"$HOME"/{shlex.quote(remote.sync_state)}'
    places = " ".join(f'"{place}"' for place in PLACES) + f' "$HOME"/{shlex.quote(remote.environment)}/bin'
    alone = [
        # Each program that is not started saves a millisecond of the server's.
        f"[ -d {scripts} ] || {{ mkdir -p -- {project} && (umask 077; mkdir -p -- {scripts}); }} || exit {CANNOT_USE}",
        *_wait_for_others(remote, attempt),
    ]
    return "\n".join(
        [
            f'cd "$HOME" || exit {CANNOT_USE}',
            "rsync=; if command -v rsync >/dev/null; then rsync=rsync; fi",
            f'for place in {places}; do [ -n "$rsync" ] || {{ [ -x "$place/rsync" ] && rsync=$place/rsync; }}; done',
            f'[ -n "$rsync" ] || exit {NO_RSYNC}',
            *([] if dry_run else [*alone, *_settle(remote)]),
            f"wanted='{COMPLETE} {attempt.snapshot_id}'",
            *_read_state(remote),
            *_tell_state(remote, attempt.mark, look_script(remote, known)),
            '[ "$same $state" != "1 $wanted" ] || exit 0',
            "IFS= read -r words || exit 1",
            *([] if dry_run else [f"echo '{attempt.incomplete}' > {state} || exit {CANNOT_WRITE}"]),
            *(_relay(remote, attempt) if relayed else []),
            *_receive(remote, dry_run=dry_run),
            f'printf \'\\000\\000%s %s %s\\n\' {attempt.mark} "$status" "$stays"',
            *([] if dry_run else ['[ -n "$stays" ] || exit "$status"', *_finish(remote, attempt)]),
            'exit "$status"',
            "",
        ]
    )


def relay_words(version: str, request: bytes) -> bytes:
    """Return the lines that have the script ask the control program of this version; it answers up to the mark."""
    return f"{RELAY}\nsupervisor-{version}\n".encode() + request


def _relay(remote: RemotePaths, attempt: Attempt) -> list[str]:
    """Ask the control program, alone on this server and after the copy is called incomplete, as rsync is."""
    scripts = shlex.quote(remote.scripts)
    return [
        f'while [ "$words" = {RELAY} ]; do',
        "  IFS= read -r program || exit 1",
        f'  if [ -x {scripts}/python ] && [ -d {scripts}/"$program" ]; then',
        f'    (cd {scripts} && REMOTE_TOOL_SUPERVISOR=1 exec ./python -I -S "$program"/run_control.py)',
        "  else",
        "    IFS= read -r request || exit 1",
        "  fi",
        f"  printf '\\000\\000%s \\n' {attempt.mark}",
        "  IFS= read -r words || exit 1",
        "done",
    ]


def finish_script(remote: RemotePaths, attempt: Attempt) -> str:
    """Return the script that does the end of a sync where that of :func:`receive_script` could not stay."""
    before = f"cd \"$HOME\" || exit 1; status=0 wanted='{COMPLETE} {attempt.snapshot_id}'"
    return "\n".join([before, *_finish(remote, attempt), ""])


def receive_words(arguments: Sequence[str]) -> bytes:
    """Return the line that has the script receive.

    Args:
        arguments: As the local rsync gives them: --server, options, a point, the destination; none for no rsync.
    """
    words = ['"$partial"' if each == PARTIAL_FOLDER else shlex.quote(each) for each in arguments[:-1]]
    return " ".join(words).encode() + b"\n"


def whole_words(attempt: Attempt, sent_size: int | None, stale_size: int) -> bytes:
    """Return the line that says that rsync ended well here too; the list of sent files and stale records follow.

    Args:
        attempt: This sync.
        sent_size: Bytes of the list; None to leave the one that is there.
        stale_size: Bytes of the records.
    """
    size = "-" if sent_size is None else str(sent_size)
    # rsync may have left some bytes of its own unread.
    return f"\nwhole {attempt.mark} {size} {stale_size}\n".encode()


def _settle(remote: RemotePaths) -> list[str]:
    """Move what a first sync received into the project; whether all of it could go there."""
    project, arriving = (f'"$HOME"/{shlex.quote(path)}' for path in (remote.project, f"{remote.scripts}/arriving"))
    return [
        f"project={project} arriving={arriving}",
        "settle() {",
        "  left=0; set --",
        '  for each in "$arriving"/* "$arriving"/.[!.]* "$arriving"/..?*; do',
        '    [ -e "$each" ] || [ -L "$each" ] || continue',
        # What came there meanwhile is another's: mv would go into it.
        '    if [ -e "$project/${each##*/}" ]; then left=1; else set -- "$@" "$each"; fi',
        f'    [ $# -lt {MOVED_AT_ONCE} ] || {{ mv -- "$@" "$project/" || left=1; set --; }}',
        "  done",
        '  [ $# -eq 0 ] || mv -- "$@" "$project/" || left=1',
        '  mode=$(stat -c %a "$arriving" 2>/dev/null || stat -f %Lp "$arriving") && chmod "$mode" "$project"',
        '  rm -rf "$arriving"; return "$left"',
        "}",
        # Of a first sync that was cut off; a name like rsync's own for half a file may go, it comes again.
        'if [ -e "$arriving" ]; then',
        """  find "$arriving" -type f -name '.*.??????' -exec rm -f {} +; settle""",
        "fi",
    ]


def _receive(remote: RemotePaths, *, dry_run: bool) -> list[str]:
    """Run rsync; what it writes grows in our folder, so that one that is killed leaves nothing in the project.

    A folder of ours costs a rename between folders for each file, which takes as long as all the rest of it. Where the
    project has nothing yet, all of it is received there and moved at once.
    """
    ours = " | ".join(shlex.quote(name) for name in (remote.scripts_name, remote.jobs_name))
    beside = [
        "  there=$arriving",
        '  for each in "$project"/* "$project"/.[!.]* "$project"/..?*; do',
        f"    case ${{each##*/}} in {ours}) continue;; esac",
        '    if [ -e "$each" ] || [ -L "$each" ]; then there=$project; break; fi',
        "  done",
        '  if [ "$there" = "$arriving" ]; then',
        f'    (umask 077; mkdir -- "$arriving") || exit {CANNOT_WRITE}',
        "  else",
        # The rsync of macOS and of the BSDs may be openrsync, which knows no such folder.
        f'    if [ -e {STREAMS} ]; then version=; else version=$("$rsync" --version 2>/dev/null); fi',
        '    case "$version" in',
        "      *openrsync*) ;;",
        '      *) (umask 077; mkdir -p "$partial") && beside=--temp-dir=$partial;;',
        "    esac",
        "  fi",
    ]
    settle = [
        '  if [ "$there" = "$arriving" ]; then case $status in 0 | 24)',
        '    settle || { echo "something else came into the project meanwhile" >&2; status='
        + str(CANNOT_WRITE)
        + "; };;",
        "  esac; fi",
    ]
    return [
        f'partial="$HOME"/{shlex.quote(remote.scripts + "/partial")} beside= status=0',
        f'there="$HOME"/{shlex.quote(remote.project)}',
        # rsync leaves its streams so that no shell can read from them: it gets such as are its own.
        f"if (: < {STREAMS}/0 && : > {STREAMS}/1) 2>/dev/null; then stays={STAYS}; else stays=; fi",
        'if [ -n "$words" ]; then',
        *([] if dry_run else beside),
        '  eval "set -- $words"',
        # The first is --server.
        "  first=$1; shift",
        '  set -- "$first" ${beside:+"$beside"} "$@" "$there"/',
        f'  if [ -n "$stays" ]; then "$rsync" "$@" < {STREAMS}/0 > {STREAMS}/1; else "$rsync" "$@"; fi',
        "  status=$?",
        *([] if dry_run else settle),
        '  [ -z "$beside" ] || rmdir "$partial" 2>/dev/null',
        "fi",
    ]


def _wait_for_others(remote: RemotePaths, attempt: Attempt) -> list[str]:
    """Lock; whoever waits is told for whom. rsync inherits the lock, so also one that outlives its client has it."""
    lock, owner = (f'"$HOME"/{shlex.quote(path)}' for path in (remote.sync_lock, remote.sync_owner))
    return [
        f"(umask 077; : >> {lock}) && exec 9>>{lock} || exit {CANNOT_WRITE}",
        "began=$(date +%s)",
        "if command -v flock >/dev/null; then",
        "  if ! flock -n 9; then",
        f"    since=$began who=somebody; {{ read -r since who < {owner}; }} 2>/dev/null",
        f'    echo "{WAITING}$who has been sending here for $((began - since)) s" >&2',
        f"    until flock -n 9; do [ $(($(date +%s) - began)) -lt {PATIENCE} ] || exit {LOCKED}; sleep 0.2; done",
        "    began=$(date +%s)",
        "  fi",
        "fi",
        f'echo "$began "{shlex.quote(attempt.owner)} > {owner}',
    ]


# Each argument is "size time name" as sent. What is no longer as we sent it, or lies behind a link, stays.
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


def remove_script(remote: RemotePaths) -> str:
    """Return the script that removes what the records in its stdin name, and prints the names of removed files."""
    return f'cd "$HOME"/{shlex.quote(remote.project)} || exit 1\n{_remove_from("")}\n'


def _remove_from(source: str) -> str:
    return f"xargs -0 -n 500 sh -c {shlex.quote(_REMOVE)} sh {source}"


def stale_records(state: SyncState, stale: Iterable[bytes]) -> bytes:
    """Return the stdin of :func:`remove_script`."""
    return b"".join(b"%d %d %b\0" % (*version, name) for name in stale for version in state.versions(name))


def _finish(remote: RemotePaths, attempt: Attempt) -> list[str]:
    """Remove what is stale, remember what was sent, and say that the copy is whole.

    Prints what :func:`parse_finish` reads. Refuses when another sync has begun since.
    """
    project, scripts = shlex.quote(remote.project), shlex.quote(remote.scripts)
    files = (remote.sent_files, remote.sync_state, remote.sync_owner)
    sent, state, owner = (shlex.quote(path.rpartition("/")[2]) for path in files)
    return [
        # 24: some files had gone before they were sent.
        'case $status in 0 | 24) status=0;; *) exit "$status";; esac',
        'word=; while [ "$word" != ' + f"'whole {attempt.mark}'" + " ]; do",
        '  read -r word mark sent_size stale_size || exit 1; word="$word $mark"',
        "done",
        f'umask 077; cd "$HOME"/{scripts} || exit 1',
        # The link may go in the middle, and then stdin ends early: the size tells.
        'all=.sent.$$; trap \'[ ! -e "$all" ] || rm -f "$all" "$all.new" "$all.stale"\' EXIT',
        "trap 'exit 1' HUP PIPE TERM",
        'cat > "$all" || exit 1',
        f"now=; {{ IFS= read -r now < {state}; }} 2>/dev/null",
        f"if [ \"$now\" != '{attempt.incomplete}' ]; then",
        f"  since= who=somebody; {{ read -r since who < {owner}; }} 2>/dev/null",
        f'  echo "$who has begun to send here meanwhile" >&2; exit {OVERTAKEN}',
        "fi",
        'if [ "$sent_size" != - ]; then',
        '  [ "$(wc -c < "$all")" -eq $((sent_size + stale_size)) ] || { echo "not all of it came" >&2; exit 1; }',
        '  if [ "$stale_size" -gt 0 ]; then',
        '    head -c "$sent_size" "$all" > "$all.new" && tail -c "+$((sent_size + 1))" "$all" > "$all.stale" || exit 1',
        f'    (cd "$HOME"/{project} && {_remove_from("""< "$OLDPWD/$all.stale" """)})',
        '    rm -f "$all.stale"; mv -f "$all.new" "$all" || exit 1',
        "  fi",
        f'  mv -f "$all" {sent} || exit 1',
        "fi",
        '[ ! -e partial ] || rm -rf partial; echo "$wanted" > ' + state,
        # A job has this file, and its supervisor has it locked, until its end is recorded.
        f'for reserve in "$HOME"/{shlex.quote(remote.jobs)}/*/reserve; do',
        '  if [ -e "$reserve" ] && ! flock -n "$reserve" true 2>/dev/null; then',
        '    job=${reserve%/reserve}; printf "/%s\\0" "${job##*/}"',
        "  fi",
        "done",
    ]


def parse_finish(answer: bytes) -> tuple[list[str], list[str]]:
    """Read what a sync prints at its end: the names of removed files, and the ids of jobs that run here."""
    names = [os.fsdecode(name) for name in answer.split(b"\0") if name]
    removed = [name for name in names if not name.startswith("/")]
    return removed, [name[1:] for name in names if is_job_id(name[1:]) and name.startswith("/")]
