"""``environment: miniconda`` and ``miniforge``: created with a conda, which is installed if missing."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remote_tool.environments.installers import choose_installer, verified_file
from remote_tool.environments.kinds.creation import creation_script
from remote_tool.environments.plan import EnvironmentPlan
from remote_tool.environments.step import Step
from remote_tool.errors import EnvironmentSetupError
from remote_tool.readable import KIBIBYTE, readable_size

if TYPE_CHECKING:
    from remote_tool.environments.installers import ChosenInstaller
    from remote_tool.environments.plan import EnvironmentRequest

INSTALL_TIMEOUT = 1800.0
CREATE_TIMEOUT = 3600.0
# Miniconda unpacks to 0.6 GB, a bare environment to 0.3 GB.
NEEDED_KILOBYTES = 1024 * 1024


def plan(request: EnvironmentRequest) -> EnvironmentPlan:
    """Plan the environment, and a conda unless the server has one.

    Raises:
        EnvironmentSetupError: There is no installer for this server, or not enough disk space.
    """
    config, facts = request.config, request.facts
    if facts.condas:
        conda = facts.condas[0]
        return EnvironmentPlan((_create(request, conda),))
    if facts.free_kilobytes is not None and facts.free_kilobytes < NEEDED_KILOBYTES:
        raise EnvironmentSetupError(
            f"{facts.server} has {readable_size(facts.free_kilobytes * KIBIBYTE)} free in {facts.home};"
            f" {config.environment.kind} needs {readable_size(NEEDED_KILOBYTES * KIBIBYTE)}",
            hint="free some space, or set environment to venv or uv, which need less",
            server=facts.server,
        )
    installer = choose_installer(config.environment, facts)
    base = f"{config.environment.kind}3"
    return EnvironmentPlan(
        (_install(base, installer), _create(request, f"{facts.home}/{base}/bin/conda")),
        installer=installer,
    )


def _install(base: str, installer: ChosenInstaller) -> Step:
    script = f"""
base={base}
{verified_file(installer)}
{_INSTALL}
"""
    return Step("conda", f"Installing {installer.name}", script, INSTALL_TIMEOUT)


def _create(request: EnvironmentRequest, conda: str) -> Step:
    config = request.config
    channels = " ".join(f"-c {shlex.quote(channel)}" for channel in config.environment.channels)
    program = shlex.quote(conda)
    python = shlex.quote(f"python={config.python_version}")
    create = f"""
echo "Conda: "{program}
{program} create -y -q -p "$prefix" --override-channels {channels} {python} pip || exit
"""
    script = creation_script(config, create, force=request.force, tool=conda)
    return Step("environment", "Creating the environment with conda", script, CREATE_TIMEOUT)


# A conda prefix cannot be renamed, as its scripts and libraries contain its path. So the installed folder keeps its
# name, and the link ~/miniconda3 to it is created atomically at the end. A folder without a link is an incomplete
# installation, which is removed if it is recorded as ours. The lock excludes other projects of the same user.
_INSTALL = r"""
visible=$HOME/$base
(umask 077; mkdir -p "$folder") || exit
exec 8>>"$folder/$base.lock" || exit
alone=
if command -v flock >/dev/null; then until flock -n 8; do sleep 1; done; alone=yes; fi

if [ -x "$visible/bin/conda" ]; then echo "$visible already exists"; exit 0; fi
if [ -L "$visible" ] && [ ! -e "$visible" ]; then rm -f "$visible"; fi
if [ -e "$visible" ]; then refuse "$visible exists, but contains no conda" "move it away: mv $visible $visible.old"; fi
[ -f "$file" ] || refuse "the installer $file is missing" "run the command again"
verify "$file"
unfinished=$folder/$base.unfinished
if [ "$alone" ] && [ -f "$unfinished" ]; then
    old=$(cat "$unfinished")
    case $old in */* | *..*) ;; ."$base".*) rm -rf "$HOME/$old" ;; esac
fi

real=.$base.$(date -u +%Y%m%d%H%M%S).$$
printf '%s\n' "$real" >"$unfinished" || exit
shell=$(command -v bash || echo /bin/sh)
"$shell" "$file" -b -p "$HOME/$real" 8>&- || { status=$?; rm -rf "$HOME/$real"; exit "$status"; }
"$HOME/$real/bin/conda" --version 8>&- || { rm -rf "$HOME/$real"; refuse "$name did not install a conda that runs"; }
ln -s "$real" "$visible" || exit
rm -f "$file" "$unfinished"
echo "Installed $visible"
"""
