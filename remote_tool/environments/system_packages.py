"""The command that installs a missing system package: by distribution, with sudo unless we are root."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_tool.environments.facts import ServerFacts

_FAMILIES = {
    "apt": {"debian", "ubuntu", "linuxmint", "raspbian"},
    "dnf": {"fedora", "rhel", "centos", "rocky", "almalinux", "amzn", "ol"},
    "apk": {"alpine"},
    "pacman": {"arch", "manjaro"},
    "zypper": {"suse", "opensuse", "sles", "opensuse-leap", "opensuse-tumbleweed"},
}
_COMMANDS = {
    "apt": "apt-get install",
    "dnf": "dnf install",
    "apk": "apk add",
    "pacman": "pacman -S",
    "zypper": "zypper install",
}
# By missing tool, then by family; "" is for every other family. {v} is the Python version, {d} the same undotted.
_PACKAGES = {
    "rsync": {"": "rsync"},
    "git": {"": "git"},
    "curl": {"": "curl"},
    "python": {"apt": "python{v} python{v}-venv", "dnf": "python{v}", "zypper": "python{d}", "": "python3"},
    "venv": {"apt": "python{v}-venv", "dnf": "python{v}", "zypper": "python{d}", "": "python3"},
    "compiler": {"apt": "build-essential", "apk": "build-base", "pacman": "base-devel", "": "gcc gcc-c++ make"},
    "headers": {"apt": "python{v}-dev", "apk": "python3-dev", "pacman": "python", "": "python3-devel"},
}
# Messages of a build that lacks a system package.
_SIGNS = (
    ("headers", re.compile(rb"Python\.h: No such file")),
    (
        "compiler",
        re.compile(
            rb"command '[^']*(?:gcc|cc|g\+\+|clang)' failed: No such file"
            rb"|(?:unable to execute|unknown compiler|No such file or directory:) '[^']*(?:gcc|cc|g\+\+|clang)'"
            rb"|\b(?:gcc|cc|g\+\+|make): (?:command )?not found"
            rb"|[Nn]o CMAKE_C(?:XX)?_COMPILER could be found|Unknown compiler\(s\)"
        ),
    ),
    ("git", re.compile(rb"Cannot find command 'git'|Git executable not found|\bgit: (?:command )?not found")),
)
# Messages of pip and uv that reach no package index.
_NO_INDEX = re.compile(
    rb"NewConnectionError|ConnectTimeoutError|NameResolutionError"
    rb"|Failed to fetch: .*(?:\n.*){0,4}client error \(Connect\)"
)
# Messages when they cannot create the environment for building a package.
_NO_BUILD_ENVIRONMENT = re.compile(
    rb"(?:build dependencies|to install build dependencies) did not run|Failed to resolve requirements from"
)


def install_command(facts: ServerFacts, lacking: str, *, version: str = "3") -> str:
    """Return the command that installs a missing tool on the server.

    Args:
        facts: Give the distribution, and whether sudo is needed.
        lacking: ``rsync``, ``git``, ``curl``, ``python``, ``venv``, ``compiler`` or ``headers``.
        version: Python's, like ``3.11``.
    """
    family = package_family(facts.distribution)
    names = _PACKAGES[lacking]
    version = ".".join(version.split(".")[:2])
    packages = names.get(family, names[""]).format(v=version, d=version.replace(".", ""))
    if not family:
        return f"install {packages} with the package manager of {facts.server}"
    sudo = "" if facts.uid == 0 else "sudo "
    return f"on {facts.server}: {sudo}{_COMMANDS[family]} {packages}"


def package_family(distribution: str) -> str:
    """Return the package manager of a distribution, by the ID and ID_LIKE of os-release; empty if unknown."""
    for word in distribution.split():
        for family, members in _FAMILIES.items():
            if word in members:
                return family
    return ""


def hint_from_output(facts: ServerFacts, output: bytes, *, version: str = "3", kind: str = "miniconda") -> str:
    """Return advice if a step's output shows what the server lacks, or an empty string."""
    if b"No space left on device" in output or b"Disk quota exceeded" in output:
        return f"the disk of {facts.server} is full: free some space, then run the command again"
    if b"CondaToSNonInteractiveError" in output:
        return (
            "these channels have terms of service that you must accept yourself; "
            f"or name conda-forge instead, in environment.{kind}.channels and in environment.yml"
        )
    if b"setuptools-scm was unable to detect version" in output:
        return (
            "the version comes from git, and the git history is not sent: "
            'set env: {SETUPTOOLS_SCM_PRETEND_VERSION: "1.0"} in .remote/configs.yaml'
        )
    if without_index := _hint_without_index(facts, output):
        return without_index
    for lacking, sign in _SIGNS:
        if sign.search(output):
            return install_command(facts, lacking, version=version)
    return ""


def _hint_without_index(facts: ServerFacts, output: bytes) -> str:
    """Return advice if no package index can be reached, or an empty string."""
    variable, value = ("UV_NO_BUILD_ISOLATION", 1) if facts.uv else ("PIP_NO_BUILD_ISOLATION", 0)
    index = (
        f"set {'UV_DEFAULT_INDEX' if facts.uv else 'PIP_INDEX_URL'} under env: to an index that it can reach, "
        "or environment: {existing: PREFIX} to an environment that has the packages"
    )
    if _NO_BUILD_ENVIRONMENT.search(output) and (_NO_INDEX.search(output) or b"(from versions: none)" in output):
        return (
            "the server cannot reach the package index, and a build installs setuptools from it into an environment "
            f"of its own (build isolation): {index}; or install setuptools and wheel in the environment and set "
            f"{variable}: {value} under env:"
        )
    return f"the server cannot reach the package index: {index}" if _NO_INDEX.search(output) else ""
