"""The command that installs a missing system package, by distribution."""

from __future__ import annotations

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
# By missing tool and package manager; "" is any other one. {v} is the Python version, {d} the same without dots.
_PACKAGES = {
    "rsync": {"": "rsync"},
    "git": {"": "git"},
    "curl": {"": "curl"},
    "python": {"apt": "python{v} python{v}-venv", "dnf": "python{v}", "zypper": "python{d}", "": "python3"},
    "venv": {"apt": "python{v}-venv", "dnf": "python{v}", "zypper": "python{d}", "": "python3"},
    "compiler": {"apt": "build-essential", "apk": "build-base", "pacman": "base-devel", "": "gcc gcc-c++ make"},
    "headers": {"apt": "python{v}-dev", "apk": "python3-dev", "pacman": "python", "": "python3-devel"},
}


def install_command(facts: ServerFacts, tool: str, *, version: str = "3") -> str:
    """Return the command that installs a missing tool on the server.

    Args:
        facts: Have the distribution and the user.
        tool: ``rsync``, ``git``, ``curl``, ``python``, ``venv``, ``compiler`` or ``headers``.
        version: Python's, like ``3.11``.
    """
    family = package_family(facts.distribution)
    names = _PACKAGES[tool]
    version = ".".join(version.split(".")[:2])
    packages = names.get(family, names[""]).format(v=version, d=version.replace(".", ""))
    if not family:
        return f"install {packages} with the package manager of {facts.server}"
    sudo = "" if facts.uid == 0 else "sudo "
    return f"on {facts.server}: {sudo}{_COMMANDS[family]} {packages}"


def package_family(distribution: str) -> str:
    """Return the package manager for ID and ID_LIKE of os-release; empty if unknown."""
    for word in distribution.split():
        for family, members in _FAMILIES.items():
            if word in members:
                return family
    return ""
