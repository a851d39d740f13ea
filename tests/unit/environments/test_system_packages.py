"""What a server lacks is named with the command to install it."""

from __future__ import annotations

import pytest

from remote_tool.environments.facts import ServerFacts
from remote_tool.environments.system_packages import install_command, package_family


def facts(distribution: str, uid: int = 1000) -> ServerFacts:
    return ServerFacts("gpu1", "/home/u", "x86_64", "Linux", uid, distribution=distribution)


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        ("ubuntu debian", "on gpu1: sudo apt-get install rsync"),
        ("linuxmint ubuntu debian", "on gpu1: sudo apt-get install rsync"),
        ("rocky rhel centos fedora", "on gpu1: sudo dnf install rsync"),
        ("alpine", "on gpu1: sudo apk add rsync"),
        ("arch", "on gpu1: sudo pacman -S rsync"),
        ("opensuse-leap suse opensuse", "on gpu1: sudo zypper install rsync"),
        ("plan9", "install rsync with the package manager of gpu1"),
        ("", "install rsync with the package manager of gpu1"),
    ],
)
def test_the_command_is_that_of_the_distribution(distribution: str, command: str) -> None:
    assert install_command(facts(distribution), "rsync") == command


def test_root_needs_no_sudo() -> None:
    assert install_command(facts("debian", 0), "git") == "on gpu1: apt-get install git"


def test_the_package_has_the_version_where_the_distribution_has_it() -> None:
    assert "python3.11-venv" in install_command(facts("debian"), "venv", version="3.11.2")
    assert install_command(facts("alpine"), "venv", version="3.11").endswith("apk add python3")


def test_the_nearest_family_decides() -> None:
    assert package_family("nobara fedora") == "dnf"
