"""What to type when a server lacks something of its system: by distribution, with sudo unless we are root."""

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
# By what is lacking, then by family; "" is for every other family. {v} is the Python version, {d} the same undotted.
_PACKAGES = {
    "rsync": {"": "rsync"},
    "git": {"": "git"},
    "curl": {"": "curl"},
    "python": {"apt": "python{v} python{v}-venv", "dnf": "python{v}", "zypper": "python{d}", "": "python3"},
    "venv": {"apt": "python{v}-venv", "dnf": "python{v}", "zypper": "python{d}", "": "python3"},
    "compiler": {"apt": "build-essential", "apk": "build-base", "pacman": "base-devel", "": "gcc gcc-c++ make"},
    "headers": {"apt": "python{v}-dev", "apk": "python3-dev", "pacman": "python", "": "python3-devel"},
}
# What a build prints when the system lacks something.
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


def install_command(facts: ServerFacts, lacking: str, *, version: str = "3") -> str:
    """Return what to type on the server for something that it lacks.

    Args:
        facts: Tell the distribution, and whether sudo is needed.
        lacking: ``rsync``, ``git``, ``curl``, ``python``, ``venv``, ``compiler`` or ``headers``.
        version: Of Python, like ``3.11``.
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
    """Return the package manager of a distribution, by the ID and ID_LIKE of os-release; empty when not known."""
    for word in distribution.split():
        for family, members in _FAMILIES.items():
            if word in members:
                return family
    return ""


def hint_from_output(facts: ServerFacts, output: bytes, *, version: str = "3") -> str:
    """Return what to do when a step's output says what the server lacks; empty when it does not."""
    if b"No space left on device" in output or b"Disk quota exceeded" in output:
        return f"the disk of {facts.server} is full: make room, then run it again"
    if b"CondaToSNonInteractiveError" in output:
        return "these channels have terms that you must accept yourself; or set environment.channels to [conda-forge]"
    for lacking, sign in _SIGNS:
        if sign.search(output):
            return install_command(facts, lacking, version=version)
    return ""
