"""Add a public key once to ``~/.ssh/authorized_keys`` of a server, and find out why sshd may reject it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.errors import RemoteCommandError
from remote_tool.transport.ssh.endpoint import printable

if TYPE_CHECKING:
    from remote_tool.transport.host import Host

ADDED, PRESENT = "added", "present"
LIMIT = 64 * 1024

# The public line comes on stdin. A file that is a link is kept, as by ssh-copy-id; any other is written beside
# and renamed. The file beside it is also the lock: two servers may share a home.
_ADD = r"""
umask 077
IFS= read -r line || exit
cd "$HOME" || exit
mkdir -p .ssh && chmod 700 .ssh || exit
file=.ssh/authorized_keys
new=.ssh/.authorized_keys.remote-tool
fail() { echo "$*" >&2; exit 1; }
[ -w .ssh ] || fail "$HOME/.ssh is not writable"
[ ! -d "$file" ] || fail "$HOME/$file is a folder"
[ ! -e "$file" ] || [ -w "$file" ] || fail "$HOME/$file is not writable"
tries=0
until (set -C; : > "$new") 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -le 100 ] || fail "$HOME/$new cannot be created: another program is writing there, or the disk is full"
    [ -z "$(find "$new" -mmin +1 2>/dev/null)" ] || rm -f "$new"
    sleep 0.1 2>/dev/null || sleep 1
done
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT PIPE TERM

add_to() {
    # What is there may end without a line break.
    [ ! -s "$1" ] || [ -z "$(tail -c 1 "$1")" ] || echo >> "$1" || return
    printf '%s\n' "$line" >> "$1"
}
blob=${line#* }
blob=${blob%% *}
if [ -e "$file" ] && grep -v '^[[:space:]]*#' "$file" | grep -qF -- "$blob"; then
    echo present
elif [ -L "$file" ]; then
    add_to "$file" || exit
    echo added
else
    [ ! -e "$file" ] || cat "$file" > "$new" || exit
    add_to "$new" && chmod 600 "$new" && mv -f "$new" "$file" || exit
    trap - EXIT
    if command -v restorecon > /dev/null; then restorecon -F .ssh "$file" > /dev/null 2>&1; fi
    echo added
fi
printf '%s\n' "$PWD/$file"
"""

# Prints paths that others may write to: sshd rejects keys from there (StrictModes).
_LOOK = r"""
for path in "$HOME" "$HOME/.ssh" "$HOME/.ssh/authorized_keys"; do
    [ -z "$(find -L "$path" -prune \( -perm -020 -o -perm -002 \) 2>/dev/null)" ] || printf '%s\n' "$path"
done
"""


async def add_key(host: Host, line: str) -> str:
    """Add a public key if missing, and return the path of ``authorized_keys``; other lines are unchanged.

    Raises:
        RemoteCommandError: It could not be written.
        ConnectionLostError: The connection was lost; whether the key was added is unknown.
    """
    label = "add the public key"
    answer = await host.run(_ADD, stdin=line.encode() + b"\n", limit=LIMIT, label=label)
    what, _, file = answer.stdout.decode(errors="replace").strip().partition("\n")
    if what not in {ADDED, PRESENT}:
        message = f"{host.name}: {label}: unexpected answer: {printable(what)[:100]!r}"
        raise RemoteCommandError(message, server=host.name, command=label, exit_status=0)
    return printable(file)


async def writable_by_others(host: Host) -> list[str]:
    """Return the parents of ``authorized_keys``, and the file itself, that other users may write to."""
    answer = await host.run(_LOOK, limit=LIMIT, check=False, label="check the permissions of ~/.ssh")
    return [printable(path) for path in answer.stdout.decode(errors="replace").splitlines()]
