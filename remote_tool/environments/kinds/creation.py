"""The frame around the creation of an environment: remove the old one, and record the new one when finished."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script, requested_spec
from remote_tool.paths import shell_path

if TYPE_CHECKING:
    from remote_tool.config.model import Config


def creation_script(config: Config, create: str, *, force: bool, tool: str = "") -> str:
    """Frame the lines that create an environment at ``$prefix``; its record is written last.

    Args:
        config: The requested environment, and the folders.
        create: Shell lines, which exit if they fail.
        force: Recreate it even if it is finished.
        tool: The conda that creates it.
    """
    remote = config.remote
    expected = {"kind": config.environment.kind.value, "wish": requested_spec(config), "version": config.python or ""}
    return f"""
prefix={shell_path(remote.environment)}
activation={shell_path(remote.activation)}
link={shell_path(remote.python)}
packages={shell_path(remote.packages_fingerprint)}
expected={shlex.quote(json.dumps(expected))}
force={"yes" if force else ""}
{_CLEAR}
if [ -z "$rewrite" ]; then
{create}
fi
{_ENSURE_PIP}
{capture_script(config, remote.environment, tool=tool)}
"""


# Of two prepares at once, the second waits for the lock, and finds a finished environment. An environment in use is not
# removed, as its processes would lose their files. The record is removed first: only a finished environment has one. So
# a record that a power cut has damaged belongs to a finished environment, and is written again.
_CLEAR = r"""
is_finished='
import json, sys
record, expected = json.load(open(sys.argv[1])), json.loads(sys.argv[2])
version = expected["version"].split(".") if expected["version"] else []
is_same = all(record[key] == expected[key] for key in ("kind", "wish"))
sys.exit(not (is_same and record["version"].split(".")[: len(version)] == version))
'
damaged_record='
import json, os, sys
expected = json.loads(sys.argv[2])
try:
    json.load(open(sys.argv[1]))
    sys.exit(1)
except ValueError:
    version = expected["version"].split(".") if expected["version"] else []
    has_conda = os.path.isdir(os.path.join(sys.argv[3], "conda-meta"))
    is_same = has_conda == (expected["kind"] in ("miniconda", "miniforge"))
    sys.exit(not (is_same and [str(part) for part in sys.version_info[: len(version)]] == version))
'
rewrite=
if [ -f "$activation" ]; then
    if [ -z "$force" ] && "$link" -I -S -c "$is_finished" "$activation" "$expected" 2>/dev/null; then
        echo "The environment is up to date"
        exit 0
    fi
    has_damaged_record() {
        "$prefix/bin/python" -I -S -c "$damaged_record" "$activation" "$expected" "$prefix" 2>/dev/null
    }
    if [ -z "$force" ] && has_damaged_record; then
        echo "The record of the environment is damaged and is written again"
        rewrite=yes
    fi
fi
if [ -f "$activation" ] && [ -z "$rewrite" ]; then
    users=$(grep -lF -- "$prefix" /proc/[0-9]*/environ 2>/dev/null | sed 's|^/proc/||; s|/environ$||' | tr '\n' ' ')
    [ -z "$users" ] || refuse "the environment must be recreated, but processes are using it: ${users% }" \
        "stop them first; list them with: remote-tool job-list"
fi
if [ -z "$rewrite" ]; then
    rm -f "$activation" "$packages" "$link" || exit
    rm -rf "$prefix" || exit
fi
"""

# The Pythons of conda-forge and uv have no pip.
_ENSURE_PIP = r"""
"$prefix/bin/python" -I -c 'import pip' 2>/dev/null || "$prefix/bin/python" -I -m ensurepip --default-pip ||
    echo 'This Python has no pip and no ensurepip' >&2
"""
