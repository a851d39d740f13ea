"""Which packages the project wants, and how they get into the environment."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script, shell_path
from remote_tool.environments.step import Step
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.model import Config, EnvironmentKind
    from remote_tool.environments.activation import Activation
    from remote_tool.environments.facts import ServerFacts

PACKAGES_TIMEOUT = 2 * 3600.0
_INCLUDE = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)(?:\s+|=)?(?P<file>[^\s#]+)", re.MULTILINE)


@dataclass(frozen=True)
class PackageFile:
    """The file that says which packages are wanted.

    Attributes:
        name: Relative to the project.
        digests: SHA-256 of every file that has a say, by path relative to the project.
        has_hashes: Whether packages are pinned by hash, which is then required of all.
        ignored: Others that are there, and are not looked at.
    """

    name: str
    digests: dict[str, str]
    has_hashes: bool = False
    ignored: tuple[str, ...] = ()


def find_package_file(root: Path, kind: EnvironmentKind) -> PackageFile | None:
    """Return the first of requirements.txt, Pipfile, pyproject.toml, environment.yml; None when none is there.

    Raises:
        EnvironmentSetupError: It cannot be read.
    """
    candidates = [name for name in ("requirements.txt", "Pipfile") if (root / name).is_file()]
    if _is_project(root / "pyproject.toml"):
        candidates.append("pyproject.toml")
    conda_files = [name for name in ("environment.yml", "environment.yaml") if (root / name).is_file()]
    usable = candidates + (conda_files if kind.is_conda else [])
    if not usable:
        return None
    name = usable[0]
    files = _files_with_a_say(root, name)
    return PackageFile(
        name=name,
        digests={file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in files},
        has_hashes=name == "requirements.txt" and any(b"--hash=" in (root / file).read_bytes() for file in files),
        ignored=tuple(other for other in candidates + conda_files if other != name),
    )


def fingerprint(file: PackageFile, activation: Activation) -> str:
    """Return what changes whenever the packages must be installed anew."""
    said = [file.name, sorted(file.digests.items()), activation.kind, activation.version, activation.prefix]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def plan_packages(config: Config, facts: ServerFacts, activation: Activation, file: PackageFile) -> Step:
    """Plan to install the packages; the fingerprint is written when all of it has worked."""
    verify = json.dumps(file.digests)
    script = f"""
python={shlex.quote(activation.python)}
prefix={shlex.quote(activation.prefix)}
conda={shlex.quote(activation.tool)}
uv={shlex.quote(facts.uv)}
activation=$HOME/{shlex.quote(config.remote.activation)}
packages=$HOME/{shlex.quote(config.remote.packages_fingerprint)}
tools=$HOME/{shlex.quote(config.remote.scripts)}/pipenv
fingerprint={fingerprint(file, activation)}
digests={shlex.quote(verify)}
cd {shell_path(config.remote.project)} || refuse "the project is not on this server" "remote-tool rsync"
{_BEGIN}
{_install(file)}
cd "$HOME" || exit
if [ -d "$prefix/conda-meta" ]; then
{capture_script(config, activation.prefix, tool=activation.tool)}
fi
{_FINISH}
"""
    return Step("packages", f"Installing {file.name}", script, PACKAGES_TIMEOUT)


def _is_project(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        return "project" in tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EnvironmentSetupError(f"pyproject.toml: {error}") from error


def _files_with_a_say(root: Path, name: str) -> list[str]:
    if name == "requirements.txt":
        return _with_included(root, name)
    beside = {"Pipfile": ("Pipfile.lock",), "pyproject.toml": ("setup.py", "setup.cfg")}.get(name, ())
    return [name, *(other for other in beside if (root / other).is_file())]


def _with_included(root: Path, name: str) -> list[str]:
    """Return the file and those that it includes; what lies outside of the project is not sent, so pip will say it."""
    found: list[str] = []
    waiting = [name]
    while waiting:
        current = waiting.pop(0)
        if current in found or not (root / current).is_file():
            continue
        found.append(current)
        text = (root / current).read_text(encoding="utf-8", errors="replace")
        waiting += filter(None, (_inside(current, match["file"]) for match in _INCLUDE.finditer(text)))
    return found


def _inside(including: str, included: str) -> str:
    """Return the path of an included file relative to the project; empty when it lies outside, or is a URL."""
    if "://" in included or "$" in included or included.startswith("/"):
        return ""
    parts: list[str] = []
    for part in (PurePosixPath(including).parent / included).parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            return ""
    return "/".join(parts)


def _install(file: PackageFile) -> str:
    hashes = " --require-hashes" if file.has_hashes else ""
    if file.name == "requirements.txt":
        return f"install -r requirements.txt{hashes}"
    if file.name == "pyproject.toml":
        return "install -e ."
    if file.name == "Pipfile":
        return _PIPENV + (
            "run_pipenv sync --system" if "Pipfile.lock" in file.digests else "run_pipenv install --system --skip-lock"
        )
    return f'"$conda" env update -q -p "$prefix" -f {file.name} || exit'


# Another file on the server than here, and the fingerprint would vouch for packages that were never installed.
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
[ -z "$different" ] || refuse "not the same on the server as here: $(echo $different)" \
    "remote-tool rsync; and exclude.txt must not exclude it"
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
"""

_PIPENV = r"""
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
