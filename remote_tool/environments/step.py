"""One step of work on a server, as data, and the frame that every step runs in."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# The script says why on a line "refused: …", and what to do on a line "hint: …".
REFUSED = 65
# Names of the variables that the user has set: they are no part of an environment.
USERS_VARIABLES = "REMOTE_TOOL_USERS_VARIABLES"

# What the user has set comes first; the transport has added the system's folders.
SEARCH_PATH = 'PATH="${PATH:+$PATH:}$HOME/.local/bin:$HOME/.cargo/bin:/snap/bin"; export PATH'


@dataclass(frozen=True)
class Step:
    """Something to do on a server.

    Attributes:
        name: One word, shown to the user and part of the log's name.
        title: What it does, such as "Creating the environment"; an error's sentence begins with it.
        script: For ``/bin/sh``, run by :func:`guarded`.
        timeout: Seconds until it is given up.
        alone: Whether no other such step may work in the project's folder meanwhile.
    """

    name: str
    title: str
    script: str
    timeout: float
    alone: bool = True


def guarded(step: Step, scripts_folder: str, variables: Mapping[str, str]) -> str:
    """Frame a step's script: it starts in ``$HOME``, alone in the project if it has to, and ends with its client.

    A step that goes on after its client has gone would write into what the next prepare makes, so stdin is watched:
    its end ends the step and everything that it started.

    Args:
        step: What to do.
        scripts_folder: Ours on the server, relative to ``$HOME``.
        variables: What the user has set for all commands; what would lead Python astray is left out.
    """
    # All paths of ours begin in the home folder.
    exports = {name: f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if name != "HOME"}
    names = shlex.quote(" ".join(exports.keys() - {"PATH"}))
    return (
        _FRAME.replace("@SCRIPTS@", shlex.quote(scripts_folder))
        .replace("@SEARCH@", SEARCH_PATH)
        .replace("@VARIABLES@", "".join([*exports.values(), f"export {USERS_VARIABLES}={names}"]))
        .replace("@ALONE@", "true" if step.alone else "false")
        .replace("@SCRIPT@", step.script)
    )


# flock frees the lock when its holder dies in whatever way; where there is no flock, nothing is locked.
# The script comes by stdin of a shell of its own, never in argv: it may name a URL with a password.
_FRAME = r"""
cd "$HOME" || exit 90
@VARIABLES@
@SEARCH@
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP CDPATH ENV BASH_ENV
exec 3<&0
session=$(command -v setsid)
$session /bin/sh -s 3<&- <<'END_OF_STEP' &
{
refuse() {
    printf 'refused: %s\n' "$1" >&2
    [ -z "$2" ] || printf 'hint: %s\n' "$2" >&2
    exit 65
}
scripts=@SCRIPTS@
umask 077
mkdir -p "$scripts" && chmod 700 "$scripts" || exit
exec 9>>"$scripts/lock" || exit
umask 022
if @ALONE@ && command -v flock >/dev/null; then
    flock -n 9 || echo 'Waiting for another prepare of this project' >&2
    until flock -n 9; do sleep 1; done
fi
(
@SCRIPT@
) 9>&-
exit
} </dev/null
END_OF_STEP
work=$!
end() {
    if [ -n "$session" ]; then kill "-$1" "-$work"; else kill "-$1" "$work"; fi
}
(
    while read -r _; do :; done <&3
    end TERM
    tries=0
    while kill -0 "$work" && [ "$tries" -lt 50 ]; do tries=$((tries + 1)); sleep 0.1; done
    end KILL
) >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$work"
status=$?
kill "$watch" 2>/dev/null
exit "$status"
"""
