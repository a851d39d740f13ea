"""The facts about a server, from one round trip: a script for any POSIX shell, and a strict parser of its answer."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.environments.activation import Activation
from remote_tool.environments.step import SEARCH_PATH
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from remote_tool.config.model import Config

# The supervisor runs on the environment's Python.
OLDEST_PYTHON = (3, 8)


@dataclass(frozen=True)
class Interpreter:
    """A Python on a server.

    Attributes:
        path: Its path.
        version: The version that it reports, like ``3.11.2``.
        makes_environments: Whether both ``venv`` and ``ensurepip`` exist; Debian packages them separately.
    """

    path: str
    version: str
    makes_environments: bool

    def is_version(self, requested: str) -> bool:
        """Return whether a version matches a request like ``3.11`` or ``3.11.2``."""
        return version_matches(self.version, requested)


@dataclass(frozen=True)
class ServerFacts:
    """The facts about a server.

    Attributes:
        server: Its name in the configuration.
        home: ``$HOME``.
        machine: From uname, like ``x86_64``.
        system: The kernel, like ``Linux``.
        uid: Our user id; 0 needs no sudo.
        username: Our user name on the server.
        ends_sessions: Whether systemd kills our processes upon logout.
        distribution: ID and ID_LIKE of os-release, like ``ubuntu debian``.
        libc: ``glibc`` or ``musl``.
        free_kilobytes: Space available to us on the disk of ``$HOME``; None if unknown.
        total_kilobytes: The disk's size; None if unknown.
        probed: Whether the script searched for pythons and condas, as no environment works.
        pythons: The Pythons on the PATH, newest first.
        condas: Conda programs, by path, in order of preference.
        uv: Path of uv; empty without one.
        rsync: Path of rsync; empty without one.
        rsync_version: The first line of ``rsync --version``, only for checks.
        activation: The record of a finished setup; None if missing or unreadable.
        environment_python: The current version of the environment's interpreter; empty if it does not start.
        existing: The interpreter of the configured existing prefix.
        packages: The fingerprint of the installed packages.
        sync_state: The record of the last sync.
        workspaces: The workspaces that have sent the project: lines of :mod:`transport.sync.project.workspace`.
        sent_sha256: Hash of the list of sent files; empty without a list or ``compare``.
        has_supervisor: Whether this version of the agent is installed.
        folders: Inode, file system and boot of the home and of each existing folder down to the project's, which show
            whether servers share it.
        bad_folders: ``reason:path`` for folders of ours that must not be used.
    """

    server: str
    home: str
    machine: str
    system: str
    uid: int
    username: str = ""
    ends_sessions: bool = False
    distribution: str = ""
    libc: str = "glibc"
    free_kilobytes: int | None = None
    total_kilobytes: int | None = None
    probed: bool = True
    pythons: tuple[Interpreter, ...] = ()
    condas: tuple[str, ...] = ()
    uv: str = ""
    rsync: str = ""
    rsync_version: str = ""
    activation: Activation | None = None
    environment_python: str = ""
    existing: Interpreter | None = None
    packages: str = ""
    sync_state: str = ""
    workspaces: tuple[str, ...] = ()
    sent_sha256: str = ""
    has_supervisor: bool = False
    folders: tuple[str, ...] = ()
    bad_folders: tuple[str, ...] = ()


def facts_script(
    config: Config, supervisor_version: str, *, probe: bool = False, look_only: bool = False, compare: bool = False
) -> str:
    """Return the script that collects all facts for prepare.

    Args:
        config: Has the folders, and an existing prefix.
        supervisor_version: The version in the name of the agent's folder.
        probe: Search for pythons and condas even if an environment works.
        look_only: Leave the permissions of folders as they are, and add the facts for checks.
        compare: Add the hash of the list of sent files, to compare servers.
    """
    environment, remote = config.environment, config.remote
    values = {
        "project": remote.project,
        "scripts": remote.scripts,
        "activation": remote.activation,
        "python": remote.python,
        "packages": remote.packages_fingerprint,
        "sync": remote.sync_state,
        "sent": remote.sent_files,
        "workspaces": remote.workspaces,
        "owner": remote.sync_owner,
        "supervisor": f"{remote.scripts}/supervisor-{supervisor_version}",
        "existing": environment.prefix or "",
        "conda_first": environment.kind.value,
        "probe": "always" if probe else "",
        "look_only": "yes" if look_only else "",
        "compare": "yes" if compare else "",
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(['cd "$HOME" || exit 90', SEARCH_PATH, *lines, _SCRIPT])


def parse_facts(server: str, answer: bytes) -> ServerFacts:
    """Parse the answer to :func:`facts_script`.

    Raises:
        EnvironmentSetupError: It is truncated or invalid.
    """
    records = _records(answer)
    if records is None:
        beginning = answer[:200].decode(errors="replace")
        raise EnvironmentSetupError(f"{server} sent an unexpected answer about its state: {beginning!r}", server=server)
    single = {key: values[-1] for key, values in records.items()}
    try:
        return _facts(server, records, single)
    except (KeyError, ValueError) as error:
        raise EnvironmentSetupError(
            f"{server} sent an invalid answer about its state: {error}", server=server
        ) from error


def _records(answer: bytes) -> dict[str, list[str]] | None:
    fields = answer.decode(errors="surrogateescape").split("\0")
    if fields[-2:] != ["end=", ""]:
        return None
    records: dict[str, list[str]] = {}
    for field in fields[:-2]:
        key, separator, value = field.partition("=")
        if not separator or not key.isidentifier():
            return None
        records.setdefault(key, []).append(value)
    return records


def _facts(server: str, records: Mapping[str, list[str]], single: Mapping[str, str]) -> ServerFacts:
    free, total = single.get("free", ""), single.get("total", "")
    return ServerFacts(
        server=server,
        home=single["home"],
        machine=single["machine"],
        system=single["system"],
        uid=int(single["uid"]),
        username=single.get("username", ""),
        ends_sessions=_ends_sessions(single.get("logind", ""), single.get("username", "")),
        distribution=single.get("distribution", "").strip(),
        libc=single["libc"],
        free_kilobytes=int(free) if free else None,
        total_kilobytes=int(total) if total else None,
        probed=single["probed"] == "yes",
        pythons=tuple(_interpreters(records.get("interpreter", ()))),
        condas=tuple(dict.fromkeys(records.get("conda", ()))),
        uv=single.get("uv", ""),
        rsync=single.get("rsync", ""),
        rsync_version=single.get("rsync_version", ""),
        activation=Activation.parse(single.get("activation", "")),
        environment_python=single.get("environment_python", ""),
        existing=next(iter(_interpreters(records.get("existing", ()))), None),
        packages=single.get("packages", ""),
        sync_state=single.get("sync", ""),
        workspaces=tuple(records.get("workspace", ())),
        sent_sha256=single.get("sent", ""),
        has_supervisor=single.get("supervisor") == "yes",
        folders=tuple(records.get("folder", ())),
        bad_folders=tuple(records.get("bad_folder", ())),
    )


def _ends_sessions(logind: str, username: str) -> bool:
    """Parse KillUserProcesses and its exceptions in logind.conf(5)."""
    settings = dict(line.split("=", 1) for line in logind.splitlines() if "=" in line)
    included, excluded = (settings.get(name, "").split() for name in ("KillOnlyUsers", "KillExcludeUsers"))
    is_affected = username in included if included else username not in excluded
    return settings.get("KillUserProcesses") == "yes" and is_affected


def _interpreters(lines: Iterable[str]) -> Iterable[Interpreter]:
    for line in lines:
        version, makes_environments, path = line.split(" ", 2)
        yield Interpreter(path, version, makes_environments == "1")


def version_matches(version: str, requested: str) -> bool:
    """Return whether a version matches a request, which may be partial: 3.11.2 matches 3.11, but not 3.1."""
    return version.split(".")[: requested.count(".") + 1] == requested.split(".")


def is_too_old(version: str) -> bool:
    """Return whether a Python is too old for the supervisor."""
    return tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON


# facts_script sets the variables. Values may contain anything but NUL, so a record ends with NUL. `-O` and `-ef` are
# not in POSIX, but dash, busybox, bash, ksh and zsh have them. The script runs at each prepare: shell built-ins save
# the start of programs, a millisecond each.
_SCRIPT = r"""
report() { printf '%s=%s\0' "$1" "$2"; }
content() { [ -f "$1" ] && head -c 1000000 "$1"; }
# The first line of a file, in $line.
line_of() { line=; { IFS= read -r line < "$1"; } 2>/dev/null; }

check_folder() {
    if [ -L "$1" ] && [ "$2" = ours ]; then report bad_folder "link:$1"
    elif [ -e "$1" ] && [ ! -d "$1" ]; then report bad_folder "file:$1"
    elif [ -d "$1" ] && [ ! -O "$1" ]; then report bad_folder "owner:$1"
    elif [ -d "$1" ] && [ -z "$look_only" ]; then chmod "$3" "$1"
    fi
}

hash_of() {
    [ -f "$1" ] || return 0
    if command -v sha256sum >/dev/null; then sha256sum < "$1"
    elif command -v shasum >/dev/null; then shasum -a 256 < "$1"
    elif command -v openssl >/dev/null; then openssl dgst -sha256 -r < "$1"
    fi | { read -r digest _ && printf %s "$digest"; }
}

describe='
import os, sys
library = os.path.dirname(os.__file__)
makes = all(os.path.isfile(os.path.join(library, name, "__init__.py")) for name in ("venv", "ensurepip"))
print("%d.%d.%d" % sys.version_info[:3], int(makes))
'

# Prints nothing for a broken link, a wrapper that asks questions, or a Python 2.
interpreter() {
    answer=$("$1" -I -S -c "$describe" 2>/dev/null </dev/null) || return 1
    case $answer in [0-9]*.[0-9]*.[0-9]*' '[01]) printf '%s %s' "$answer" "$1" ;; *) return 1 ;; esac
}

find_pythons() {
    seen=' '
    for minor in 14 13 12 11 10 9 8 ''; do
        found=$(command -v "python3${minor:+.$minor}") || continue
        real=$(readlink -f "$found" 2>/dev/null || printf %s "$found")
        case $seen in *" $real "*) continue ;; esac
        seen="$seen$real "
        line=$(interpreter "$found") && report interpreter "$line"
    done
}

# `conda init` defines conda as a shell function, and CONDA_EXE as its program, in .bashrc, which on Debian returns at
# once in a shell that is not interactive. An interactive shell ignores SIGTERM, and a process that its startup files
# leave behind may hold the pipe.
conda_of_shell() {
    found=$(exec 2>/dev/null; timeout -s KILL 5 "${SHELL:-/bin/sh}" "$@" -c \
        'exec /bin/sh -c '\''printf "\nremote-tool:%s\n" "${CONDA_EXE:-$(command -v conda)}"'\' \
        </dev/null | timeout -s KILL 6 sed -n '/^remote-tool:/{s///p;q;}')
    case $found in /*) [ -x "$found" ] && report conda "$found" ;; *) return 1 ;; esac
}

find_condas() {
    case $conda_first in
        miniforge) set -- miniforge3 miniforge mambaforge miniconda3 miniconda ;;
        miniconda) set -- miniconda3 miniconda miniforge3 miniforge mambaforge ;;
        *) return ;;
    esac
    any=
    for name in "$@" anaconda3 anaconda; do
        for base in "$HOME/$name" "/opt/$name"; do
            [ -x "$base/bin/conda" ] && [ -x "$base/bin/python" ] && report conda "$base/bin/conda" && any=yes
        done
    done
    base=/opt/conda
    [ -x "$base/bin/conda" ] && [ -x "$base/bin/python" ] && report conda "$base/bin/conda" && any=yes
    [ "$any" ] && return
    command -v timeout >/dev/null || return 0
    conda_of_shell -l || conda_of_shell -l -i || conda_of_shell -i
}

report home "$HOME"
uname=$(uname -sm)
report machine "${uname##* }"
report system "${uname% *}"
report uid "$(id -u)"
report username "$(id -un 2>/dev/null)"
logind=$(command -v loginctl)
# Without a bus, the loginctl of the system gets no answer.
case $logind in /bin/* | /usr/bin/*) [ -e /run/dbus/system_bus_socket ] || logind= ;; esac
if [ "$logind" ] && command -v timeout >/dev/null; then
    report logind "$(timeout 3 loginctl show-user -p KillUserProcesses -p KillOnlyUsers -p KillExcludeUsers \
        2>/dev/null </dev/null)"
fi
report distribution "$( (. /etc/os-release && printf '%s %s' "$ID" "$ID_LIKE") 2>/dev/null)"
libc=glibc; for loader in /lib/ld-musl-*; do [ -e "$loader" ] && libc=musl; done
report libc "$libc"
kind= free= total=
if disk=$(stat -f -c '%a %S %b %T' . 2>/dev/null); then
    set -- $disk
    case $1$2$3 in *[!0-9]*) ;; *) free=$(($1 * $2 / 1024)) total=$(($3 * $2 / 1024)) ;; esac
    shift 3
    kind=$*
else
    disk=$(df -Pk . 2>/dev/null | { read -r _; read -r _ total _ free _; printf '%s %s' "$free" "$total"; })
    free=${disk% *} total=${disk#* }
fi
case $total in *[!0-9]*) ;; *) report total "$total" ;; esac
case $free in *[!0-9]*) ;; *) report free "$free" ;; esac

# Every folder down to the project's may be on a network disk, or a link to one.
report_folders() {
    below=. rest=${project#/}
    case $project in /*) below= ;; esac
    set -- .
    while [ "$rest" ]; do
        below=$below/${rest%%/*}
        set -- "$@" "$below"
        case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
    done
    home_disk=
    stat -L -c '%d %i' "$@" 2>/dev/null | while read -r disk inode; do
        home_disk=${home_disk:-$disk} own=$kind
        [ "$disk" = "$home_disk" ] || own=$(stat -f -c %T "$1" 2>/dev/null)
        report folder "$inode|$own|$line"
        shift
    done
}
line_of /proc/sys/kernel/random/boot_id
report_folders

check_folder "$project" theirs o-w
check_folder "$scripts" ours 700

report activation "$(content "$activation")"
running=$(interpreter "$python")
report environment_python "${running%% *}"
line_of "$packages"; report packages "$line"
line_of "$sync"; report sync "$line"
if [ -e "$workspaces" ]; then
    while IFS= read -r line; do report workspace "$line"; done < "$workspaces"
elif [ "$line" ]; then
    line_of "$owner"; report workspace "unknown ${line#* }"
fi
[ -z "$compare" ] || report sent "$(hash_of "$sent")"
[ -d "$supervisor" ] && report supervisor yes

uv=
for candidate in "$(command -v uv)" "$scripts/tools/bin/uv"; do
    [ -x "$candidate" ] && uv=$candidate && break
done
case $uv in '' | /*) report uv "$uv" ;; *) report uv "$HOME/$uv" ;; esac
for candidate in "$(command -v rsync)" /opt/homebrew/bin/rsync "$HOME"/miniconda3/bin/rsync \
    "$HOME"/miniforge3/bin/rsync "$scripts/environment/bin/rsync"; do
    [ -x "$candidate" ] || continue
    report rsync "$candidate"
    [ -z "$look_only" ] || report rsync_version "$("$candidate" --version 2>/dev/null | head -n 1)"
    break
done

case $existing in '~') existing=$HOME ;; '~/'*) existing=$HOME/${existing#??} ;; esac
if [ "$existing" ]; then
    for name in python python3; do
        if [ "$running" ] && [ "$existing/bin/$name" -ef "$python" ]; then
            line="${running% "$python"} $existing/bin/$name"
        else
            line=$(interpreter "$existing/bin/$name")
        fi && report existing "$line" && break
    done
fi
if [ -z "$running" ] || [ "$probe" ]; then
    find_pythons
    find_condas
    report probed yes
else
    report probed no
fi
printf 'end=\0'
"""
