"""Projects on disk, as a user has them, and the programs that run in them."""

from __future__ import annotations

import compileall
import hashlib
import sys
from typing import TYPE_CHECKING

import yaml

from remote_tool import JobSelection, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from remote_tool import Job
    from tests.sshd import Reachable

THIS_PYTHON = {"existing": sys.prefix}


def make_project(root: Path, servers: Iterable[Reachable], **settings: object) -> Path:
    """Write a project with a configs.yaml for these servers; its environment is the Python that runs the tests."""
    root.mkdir(parents=True, exist_ok=True)
    write_configuration(root, servers, **settings)
    (root / "hello.py").write_text("print('hello')\n")
    return root


def write_configuration(root: Path, servers: Iterable[Reachable], **settings: object) -> None:
    """Write ``.remote/configs.yaml``."""
    make_workspace_id(root, str(settings.get("name", "project")))
    values: dict[str, object] = {
        "name": "project",
        "environment": THIS_PYTHON,
        "servers": {
            server.name: {
                "hostname": server.address,
                "port": server.port,
                "username": server.username,
                "private_key": str(server.key),
            }
            for server in servers
        },
    }
    (root / ".remote" / "configs.yaml").write_text(yaml.safe_dump(values | settings, sort_keys=False))


def make_workspace_id(root: Path, name: str = "project") -> None:
    """Make a folder a checkout of the one workspace of all tests with this name, which may share folders on servers."""
    file = root / ".remote" / "logs" / "workspace"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{workspace_id(name)}\n")


def workspace_id(name: str) -> str:
    """Return the id of the one workspace with this name."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def compile_agent(there: Path) -> None:
    """Compile the agent in a project's folder on a server; else each module is when it is first used."""
    assert compileall.compile_dir(there / ".remote-scripts", quiet=1)


def start(project: Path, command: str, *tags: str, server: str = "first") -> Job:
    """Start a job."""
    return Workspace.find(project).start(server, command, tags=tags).job


def kill(project: Path, *jobs: Job) -> None:
    """Stop jobs at once."""
    chosen = JobSelection(jobs=tuple(job.id for job in jobs))
    Workspace.find(project).stop_jobs(chosen, signal="SIGKILL").raise_if_any_failed()
