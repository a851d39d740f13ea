"""A step of work on a server, and the frame around its script."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# The exit status of a script that prints a line "refused: REASON", and may print a line "hint: ADVICE".
REFUSED = 65
# The names of the user's variables, which are not part of an environment.
USERS_VARIABLES = "REMOTE_TOOL_USERS_VARIABLES"

# The entries so far come first; the transport has added the folders of the system.
SEARCH_PATH = 'PATH="${PATH:+$PATH:}$HOME/.local/bin:$HOME/.cargo/bin:/snap/bin"; export PATH'


@dataclass(frozen=True)
class Step:
    """A step on a server.

    Attributes:
        name: One word, for the user and the name of the log.
        title: Text like "Creating the environment"; the subject of error messages.
        script: For ``/bin/sh``, run by :func:`guarded`.
        timeout: In seconds.
        alone: Whether no other such step may run in the project at the same time.
    """

    name: str
    title: str
    script: str
    timeout: float
    alone: bool = True


def guarded(step: Step, scripts_folder: str, variables: Mapping[str, str]) -> str:
    """Frame a step's script: it starts in ``$HOME``, locks the project if required, and ends with its client.

    A step that outlives its client would disturb the next prepare, so the frame watches stdin: its end kills the step
    and all processes that it started.

    Args:
        step: The step.
        scripts_folder: Our folder on the server, relative to ``$HOME``.
        variables: The user's variables for all commands; variables that change how Python starts are unset.
    """
    # All our paths are relative to the home folder.
    exports = {name: f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if name != "HOME"}
    names = shlex.quote(" ".join(exports.keys() - {"PATH"}))
    return ERRORS_TOO + (
        _FRAME.replace("@SCRIPTS@", shlex.quote(scripts_folder))
        .replace("@SEARCH@", SEARCH_PATH)
        .replace("@VARIABLES@", "".join([*exports.values(), f"export {USERS_VARIABLES}={names}"]))
        .replace("@ALONE@", "true" if step.alone else "false")
        .replace("@SCRIPT@", step.script)
    )


# If a startup file joins both outputs, the transport has closed standard error, but users need the errors.
ERRORS_TOO = "if [ /dev/fd/2 -ef /dev/null ]; then exec 2>&1; fi"

# flock releases the lock however its holder ends; without flock, nothing is locked.
# The script comes on stdin of its own shell, never in argv: it may contain a URL with a password.
_FRAME = r"""
cd "$HOME" || exit 90
@VARIABLES@
@SEARCH@
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP CDPATH ENV BASH_ENV
# A client that gives up has SIGHUP sent here before it closes stdin. The step itself does not ignore it.
trap : HUP
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
# Before setsid has run, and without it, there is no such group.
end() { kill "-$1" "-$work" || kill "-$1" "$work"; }
trap '' HUP
(
    while read -r _; do :; done <&3
    trap '' TERM
    end TERM
    tries=0
    while end 0 && [ "$tries" -lt 50 ]; do tries=$((tries + 1)); sleep 0.1; done
    end KILL
) >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$work"
status=$?
kill "$watch" 2>/dev/null
exit "$status"
"""
