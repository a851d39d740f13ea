"""Facts about this server that a launch needs: versions, GPUs, addresses. Nothing here imports torch."""

from __future__ import annotations

import os
import platform
import re
import socket
import time

from remote_tool.agent import activation
from remote_tool.agent.activation import Activation, ActivationError, Origin
from remote_tool.agent.machine import addresses
from remote_tool.agent.machine.gpus import count_gpus, list_folder, list_gpus, list_uuids
from remote_tool.agent.proc import processes
from remote_tool.agent.proc.subprocess import output_of
from remote_tool.agent.requests import is_flag, is_text
from remote_tool.protocol.marks import PROJECT_MARKER
from remote_tool.protocol.setup_script import put_before_attached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from remote_tool.agent.requests import Request

_DISTRIBUTION = re.compile(r"(torch|ray|nvidia_nccl_cu[0-9]+)-([^-]+)\.dist-info", re.ASCII)
_SERVER_ADDRESS = 2
_BEGIN = "remote-tool: versions"
_QUESTION = f"""
import sys
from importlib.metadata import distributions
print("{_BEGIN}")
print("python", ".".join(map(str, sys.version_info[:3])))
for found in distributions():
    name = (found.metadata["Name"] or "").lower().replace("-", "_")
    if name in ("torch", "ray") or name.startswith("nvidia_nccl_cu"):
        print(name, found.version)
"""


def own_addresses(request: Request) -> None:
    """Answer op ``own_addresses``: where other servers may reach this one; needs no environment."""
    request.answer({"addresses": addresses.list_addresses(), "ssh_server_address": _ssh_server_address()})


def facts(request: Request) -> None:
    """Answer op ``facts``; ``launch`` adds the slow facts."""
    folders = request.folders()
    is_launch = request.get("launch", is_flag, default=False)
    gpus = list_gpus()
    answer: Dict[str, Any] = {
        "python": platform.python_version(),
        "torch": None,
        "nccl": None,
        "ray": None,
        "gpus": len(gpus),
        "gpu_names": gpus,
        "devices": count_gpus(),
        "uuids": list_uuids(),
        "cpus": len(os.sched_getaffinity(0)),
        "hostname": socket.gethostname(),
        "machine": platform.machine(),
        "identity": processes.place(),
        "project": os.path.realpath(folders.project),
        "addresses": addresses.list_addresses(),
        "ssh_server_address": _ssh_server_address(),
        "now": time.time(),
    }
    entry = request.get("entry", lambda _: True)
    if entry is not None and is_launch:
        from remote_tool.agent.wrapper_facts import ask_inside  # noqa: PLC0415 - few servers have a launch command

        request.answer({**answer, **ask_inside(entry, request)})
        return
    try:
        active = activation.load_activation(folders.activation)
        found = _find_versions(active, request, ask=is_launch)
    except ActivationError as error:
        request.answer({**answer, "python": None, "problem": str(error)})
        return
    python = found.get("python") or active.version or answer["python"]
    versions = {"torch": found.get("torch"), "nccl": _version_of_nccl(found), "ray": found.get("ray")}
    request.answer({**answer, "python": python, **versions})


def _ssh_server_address() -> Optional[str]:
    # Client address and port, server address and port, as ssh(1) has it.
    fields = os.environ.get("SSH_CONNECTION", "").split()
    return fields[2] if len(fields) > _SERVER_ADDRESS else None


def _find_versions(active: Activation, request: Request, *, ask: bool) -> Dict[str, str]:
    setup = request.get("setup", is_text, default="")
    if ask and setup:
        # The shell may load another Python, or packages of its own.
        found = _versions_after_setup(active, request, setup)
        if found:
            return found
    found = _versions_in_prefix(active)
    if request.get("package", is_text, default="torch") not in found and ask and active.python:
        # The package may be in a parent environment, or on a PYTHONPATH of the activation.
        found = _versions_of_python(active)
    return found


def _version_of_nccl(found: Dict[str, str]) -> Optional[str]:
    return next((version for name, version in found.items() if name.startswith("nvidia_nccl")), None)


def _versions_in_prefix(active: Activation) -> Dict[str, str]:
    found = {}
    for library in ("lib", "lib64"):
        for python in list_folder(f"{active.prefix}/{library}"):
            if python.startswith("python3"):
                for name in list_folder(f"{active.prefix}/{library}/{python}/site-packages"):
                    match = _DISTRIBUTION.fullmatch(name)
                    if match:
                        found[match.group(1)] = match.group(2)
    return found


def _versions_of_python(active: Activation) -> Dict[str, str]:
    environment = dict(os.environ)
    environment.update(active.variables)
    return _read_versions(output_of([active.python, "-c", _QUESTION], environment))


def _versions_after_setup(active: Activation, request: Request, setup: str) -> Dict[str, str]:
    user = activation.with_home(request.get("environment", lambda value: isinstance(value, dict), default={}))
    origin = Origin(request.folders().project, "facts", "")
    environment = activation.build_environment(os.environb, active, user, origin)
    ask = put_before_attached(f"exec python - <<'END_OF_QUESTION'\n{_QUESTION}END_OF_QUESTION", setup)
    script = f'{{\ncd "${PROJECT_MARKER}" || exit\n{ask}\n}} </dev/null\n'.encode("utf-8", "surrogateescape")
    # A sourced script sees the shell's arguments, so there are none.
    shell = ["/bin/sh", "-c", 'exec "$(command -v bash || echo /bin/sh)" -s']
    return _read_versions(output_of(shell, environment, script))


def _read_versions(text: str) -> Dict[str, str]:
    found: Dict[str, str] = {}
    # Output of the setup script precedes it.
    for line in text.partition(f"{_BEGIN}\n")[2].splitlines():
        # As with an import, the first match on the path counts.
        name, _, version = line.partition(" ")
        found.setdefault(name, version)
    return found
