"""Common to all kinds that create an environment: start from scratch, and record it only when finished."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script, requested_spec

if TYPE_CHECKING:
    from remote_tool.config.model import Config


def creation_script(config: Config, create: str, *, force: bool, tool: str = "") -> str:
    """Frame the lines that create an environment at ``$prefix``, ending with its record.

    Args:
        config: The requested environment, and the folders.
        create: Shell lines; they exit with a status upon failure.
        force: Recreate it even if it is finished.
        tool: The conda that creates it.
    """
    remote = config.remote
    expected = {"kind": config.environment.kind.value, "wish": requested_spec(config), "version": config.python or ""}
    return f"""
prefix=$HOME/{shlex.quote(remote.environment)}
activation=$HOME/{shlex.quote(remote.activation)}
link=$HOME/{shlex.quote(remote.python)}
packages=$HOME/{shlex.quote(remote.packages_fingerprint)}
expected={shlex.quote(json.dumps(expected))}
force={"yes" if force else ""}
{_CLEAR}
if [ -z "$again" ]; then
{create}
fi
{_ENSURE_PIP}
{capture_script(config, remote.environment, tool=tool)}
"""


# With two prepares at once, the second one waits for the lock and finds the work done. Processes in a finished
# environment would lose their files, so that is refused. The record is removed first, to mark it as unfinished: only a
# finished environment has one, so one that a power cut has damaged is written again.
_CLEAR = r"""
is_finished='
import json, sys
record, expected = json.load(open(sys.argv[1])), json.loads(sys.argv[2])
wanted = expected["version"].split(".") if expected["version"] else []
same = all(record[key] == expected[key] for key in ("kind", "wish"))
sys.exit(not (same and record["version"].split(".")[: len(wanted)] == wanted))
'
is_whole='
import json, os, sys
expected = json.loads(sys.argv[2])
try:
    json.load(open(sys.argv[1]))
    sys.exit(1)
except ValueError:
    wanted = expected["version"].split(".") if expected["version"] else []
    has_conda = os.path.isdir(os.path.join(sys.argv[3], "conda-meta"))
    is_same = has_conda == (expected["kind"] in ("miniconda", "miniforge"))
    sys.exit(not (is_same and [str(part) for part in sys.version_info[: len(wanted)]] == wanted))
'
again=
if [ -f "$activation" ]; then
    if [ -z "$force" ] && "$link" -I -S -c "$is_finished" "$activation" "$expected" 2>/dev/null; then
        echo "The environment is up to date"
        exit 0
    fi
    whole() { "$prefix/bin/python" -I -S -c "$is_whole" "$activation" "$expected" "$prefix" 2>/dev/null; }
    if [ -z "$force" ] && whole; then
        echo "The record of the environment is damaged and is written again"
        again=yes
    fi
fi
if [ -f "$activation" ] && [ -z "$again" ]; then
    users=$(grep -lF -- "$prefix" /proc/[0-9]*/environ 2>/dev/null | sed 's|^/proc/||; s|/environ$||' | tr '\n' ' ')
    [ -z "$users" ] || refuse "the environment must be recreated, but processes are using it: ${users% }" \
        "stop them first; list them with: remote-tool job-list"
fi
if [ -z "$again" ]; then
    rm -f "$activation" "$packages" "$link" || exit
    rm -rf "$prefix" || exit
fi
"""

# conda-forge's Python and those of uv come without pip.
_ENSURE_PIP = r"""
"$prefix/bin/python" -I -c 'import pip' 2>/dev/null || "$prefix/bin/python" -I -m ensurepip --default-pip ||
    echo 'This Python has no pip and no ensurepip' >&2
"""
