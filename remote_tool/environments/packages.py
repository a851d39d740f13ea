"""Install the packages of the project into the environment."""

from __future__ import annotations

import hashlib
import json
import shlex
from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script
from remote_tool.environments.package_files import PackageInstaller
from remote_tool.environments.step import Step
from remote_tool.paths import shell_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.config.model import Config
    from remote_tool.environments.activation import Activation
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.package_files import Packages, PackageSource

PACKAGES_TIMEOUT = 2 * 3600.0
OUTSIDE_HINT = "copy it into the project, or move .remote to the folder that contains both: that folder is sent"


def fingerprint(packages: Packages, activation: Activation) -> str:
    """Return a hash that changes whenever the packages must be reinstalled."""
    extras = [source.extras for source in packages.sources if source.extras]
    parts = [packages.name, sorted(packages.digests.items()), activation.kind, activation.version]
    parts += [activation.prefix, *extras]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def plan_packages(
    config: Config, facts: ServerFacts, activation: Activation, packages: Packages, variables: Mapping[str, str]
) -> Step:
    """Plan to install the packages; the fingerprint is written only after all were installed.

    Args:
        config: Has the folders, and the channels for conda.
        facts: Have the path of uv.
        activation: The environment.
        packages: The packages.
        variables: Variables for the installers, unless the user has set them.
    """
    exports = "".join(
        f'[ "${{{name}+set}}" ] || export {name}={shlex.quote(value)}\n' for name, value in variables.items()
    )
    outside = "".join(
        f"[ -e {shlex.quote(path)} ] || refuse {shlex.quote(_not_sent(name, path))} {shlex.quote(OUTSIDE_HINT)}\n"
        for name, path in packages.outside
    )
    script = f"""
python={shlex.quote(activation.python)}
prefix={shlex.quote(activation.prefix)}
conda={shlex.quote(activation.tool)}
uv={shlex.quote(facts.uv)}
activation={shell_path(config.remote.activation)}
packages={shell_path(config.remote.packages_fingerprint)}
scripts={shell_path(config.remote.scripts)}
channels={shlex.quote(",".join(config.environment.channels))}
notice=
fingerprint={fingerprint(packages, activation)}
digests={shlex.quote(json.dumps(packages.digests))}
cd {shell_path(config.remote.project)} || refuse "the project has not been sent to this server" "remote-tool rsync"
{_BEGIN}
{exports}{outside}{_install(packages)}
cd "$HOME" || exit
if [ -d "$prefix/conda-meta" ]; then
{capture_script(config, activation.prefix, tool=activation.tool)}
fi
{_FINISH}
"""
    return Step("packages", f"Installing {packages.name}", script, PACKAGES_TIMEOUT)


def _not_sent(name: str, path: str) -> str:
    return f"{name} refers to {path}, which is outside the project: it is not sent, and does not exist on this server"


def _install(packages: Packages) -> str:
    """Return the lines that install all sources; pip gets all its sources at once, for a consistent resolution."""
    lines = [line for source in packages.sources if (line := _command_line(source))]
    pip = [source for source in packages.sources if source.installer is PackageInstaller.PIP]
    if pip:
        arguments = [argument for source in pip for argument in _pip_arguments(source)]
        lines.append(shlex.join(["install", *arguments, *(["--require-hashes"] if packages.has_hashes else [])]))
    helpers = {PackageInstaller.PIPENV: _PIPENV, PackageInstaller.UV: _UV, PackageInstaller.POETRY: _POETRY}
    used = dict.fromkeys(source.installer for source in packages.sources)
    return "".join(helpers.get(installer, "") for installer in used) + "\n".join(lines)


def _command_line(source: PackageSource) -> str:
    """Return the command for a source; empty for pip."""
    folder = shlex.quote(source.path)
    if source.installer is PackageInstaller.CONDA:
        return f'CONDA_CHANNELS=${{CONDA_CHANNELS:-$channels}} "$conda" env update -q -p "$prefix" -f {folder} || exit'
    if source.installer is PackageInstaller.PIPENV:
        is_locked = "Pipfile.lock" in source.files
        return "run_pipenv sync --system" if is_locked else "run_pipenv install --system --skip-lock"
    if source.installer is PackageInstaller.UV:
        return f"sync_with_uv --project {folder}" + "".join(f" --extra {shlex.quote(each)}" for each in source.extras)
    if source.installer is PackageInstaller.POETRY:
        extras = "".join(f" --extras {shlex.quote(each)}" for each in source.extras)
        fallback = shlex.join(_pip_arguments(source))
        return f"install_with_poetry {shlex.quote(source.needs)} {shlex.quote(fallback)} --directory {folder}{extras}"
    return ""


def _pip_arguments(source: PackageSource) -> list[str]:
    if source.path.endswith((".txt", ".in")):
        return ["-r", source.path]
    extras = f"[{','.join(source.extras)}]" if source.extras else ""
    if source.path.startswith("./"):
        return [source.path + extras]
    return ["-e", (source.path if source.path == "." else f"./{source.path}") + extras]


# If a file differed from the local one, the fingerprint would be wrong.
_BEGIN = r"""
different=$("$python" -I -c '
import hashlib, json, sys
for name, digest in json.loads(sys.argv[1]).items():
    try:
        with open(name, "rb") as file:
            same = hashlib.sha256(file.read()).hexdigest() == digest
    except OSError:
        same = False
    if not same:
        print(name)
' "$digests") || exit
[ -z "$different" ] || refuse "differs between the server and this machine: $(echo $different)" \
    "remote-tool rsync, and make sure that exclude.txt does not exclude it"
rm -f "$packages" || exit
eval "$("$python" -I -c '
import json, shlex, sys
record = json.load(open(sys.argv[1]))
for name in record["unset"]:
    print("unset", name)
for name, value in record["variables"].items():
    print("export", name + "=" + shlex.quote(value))
print("PATH=" + shlex.quote(":".join(record["path"])) + ":$PATH")
' "$activation")" || exit
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off UV_NO_PROGRESS=1
install() {
    if [ "$uv" ]; then
        "$uv" pip install --python "$python" "$@" || exit
    else
        "$python" -m pip install "$@" || exit
    fi
}
"""

_FINISH = r"""
umask 077
printf '%s\n' "$fingerprint" >"$packages.new" && mv -f "$packages.new" "$packages" || exit
[ -z "$notice" ] || echo "notice: $notice"
"""

_PIPENV = r"""
tools=$scripts/pipenv
run_pipenv() {
    PIPENV_IGNORE_VIRTUALENVS=0 PIPENV_NOSPIN=1 PIPENV_YES=1 PIPENV_VERBOSITY=-1 CI=1 "$program" "$@" || exit
}
program=$(command -v pipenv) || program=$tools/bin/pipenv
if ! [ -x "$program" ]; then
    rm -rf "$tools"
    if [ "$uv" ]; then
        "$uv" venv -q --python "$python" "$tools" && "$uv" pip install -q --python "$tools/bin/python" pipenv || exit
    else
        "$python" -m venv "$tools" && "$tools/bin/python" -m pip install -q pipenv || exit
    fi
fi
"""

# uv does not create an environment of its own here, and keeps packages that the lock does not have.
_UV = r"""
if [ -z "$uv" ]; then
    uv=$scripts/tools/bin/uv
    [ -x "$uv" ] || "$python" -m pip install -q --target "$scripts/tools" uv || exit
fi
sync_with_uv() {
    UV_PROJECT_ENVIRONMENT=$prefix "$uv" sync --frozen --inexact --python "$python" "$@" || exit
}
"""

# Poetry uses the active environment; without Poetry, pip ignores the lock.
_POETRY = r"""
install_with_poetry() {
    needed=$1 fallback=$2
    shift 2
    if poetry=$(command -v poetry); then
        VIRTUAL_ENV=$prefix "$poetry" install --no-interaction --no-ansi "$@" || exit
    elif [ "$needed" ]; then
        refuse "pyproject.toml sets package-mode = false, which only Poetry supports, and poetry is not installed" \
            "run pipx install poetry on the server, or name a requirements file under packages: in configs.yaml"
    else
        notice="ignoring poetry.lock: poetry is not installed on this server"
        eval "install $fallback"
    fi
}
"""
