"""The image of a server's containers: look for it, and pull it."""

from __future__ import annotations

import shlex

from remote_tool.environments.step import SEARCH_PATH, Step

PULL_TIMEOUT = 2 * 3600.0
PRESENT = b"present"

# The order of agent/wrapper/wrapper.py; the client of docker often exists without its daemon.
_ENGINE = r"""
engine=
order='podman docker'
if [ "$(id -u)" = 0 ] && { [ -n "$DOCKER_HOST" ] || [ -e /var/run/docker.sock ]; }; then order='docker podman'; fi
for each in $order; do
    command -v "$each" >/dev/null && engine=$each && break
done
"""


def check_script(image: str) -> str:
    """Return the script that prints ``present`` if the server has the image."""
    inspect = f'"$engine" image inspect {shlex.quote(image)} >/dev/null 2>&1'
    return f'{SEARCH_PATH}\n{_ENGINE}[ "$engine" ] && {inspect} && echo present\n'


def plan_pull(image: str) -> Step:
    """Plan to pull an image; the engine has its own locks, and each machine its own images."""
    script = (
        f"{_ENGINE}"
        '[ "$engine" ] || refuse "neither podman nor docker is installed" "install podman, or use launch: instead"\n'
        f'"$engine" pull {shlex.quote(image)} || exit\n'
    )
    return Step("image", f"Pulling {image}", script, PULL_TIMEOUT, alone=False)
