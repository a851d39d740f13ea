"""A server with running jobs whose ground can disappear: a folder or file that they stand on, in several ways."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from remote_tool import StartRequest, Workspace
from remote_tool.agent import states
from remote_tool.agent.proc.processes import ProcessSnapshot
from remote_tool.agent.supervisor.missing_folder import supervisors_by_job
from remote_tool.protocol import job_folder
from tests.leftovers import new_name
from tests.project import make_project, write_configuration
from tests.sshd import TestServer

from .injection import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job

NAME = "project"
# Root's sshd without the right to pass over permissions, so that taking one has an effect.
_HUMBLE = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


def make_home(server: TestServer, project: Path) -> None:
    """Prepare a server whose environment is a small one in its home, with a Python of its own."""
    environment = server.home / "env"
    words = [sys.executable, "-m", "venv", "--without-pip", "--copies", str(environment)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    for other in environment.glob("bin/python3*"):
        other.unlink()
        other.symlink_to("python")
    make_project(project, [server], environment={"existing": str(environment)})
    Workspace.find(project).prepare()


class Ground:
    """A server of its own with a project and jobs, and checkouts that know of the jobs."""

    def __init__(self, folder: Path, key: Path, made: TestServer, checkout: Path) -> None:
        """Make a server like one that was made before, and a checkout like that one's."""
        before = _HUMBLE if os.geteuid() == 0 else ()
        self.server = TestServer("first", folder / "server", key, before=before)
        self.home = self.server.home
        shutil.copytree(made.home, self.home, symlinks=True)
        scripts = self.home / NAME / ".remote-scripts"
        activation = scripts / "activation.json"
        activation.write_text(activation.read_text().replace(str(made.home), str(self.home)))
        (scripts / "python").unlink()
        (scripts / "python").symlink_to(self.home / "env" / "bin" / "python")
        self.folder = folder
        self._made = checkout
        self.jobs: tuple[Job, ...] = ()

    def start(self, names: Sequence[str]) -> dict[str, Workspace]:
        """Start a job for each name; returns a checkout for each, which knows all of them."""
        self.server.start()
        root = self.folder / "checkout"
        shutil.copytree(self._made, root)
        write_configuration(root, [self.server], environment={"existing": str(self.home / "env")})
        command = f"echo up; until test -e '{self.folder}/end' -o -e '{self.folder}/end {{}}'; do sleep 0.1; done"
        requests = [StartRequest(command.format(name), ("first",), tags=(name,), sync=False) for name in names]
        self.jobs = Workspace.find(root).start_jobs(*requests).jobs
        for job in self.jobs:
            # Until it runs, its shell needs its folder.
            wait_until((self.home / NAME / ".jobs" / job.id / "job.out").read_bytes, "what it says first")
        for name in names:
            shutil.copytree(root, self.folder / name)
        return {name: Workspace.find(self.folder / name) for name in names}

    def end(self, name: str) -> None:
        """Let the job of this name end by itself."""
        (self.folder / f"end {name}").touch()

    def path_of(self, thing: str, way: str) -> Path:
        """Return the path of one of :data:`THINGS`; of a link, what it leads to where the way is not the link's."""
        scripts = self.home / NAME / ".remote-scripts"
        supervisor = next((path for path in scripts.glob("supervisor-*")), scripts)
        paths = {
            "home": self.home,
            "project": self.home / NAME,
            ".jobs": self.home / NAME / ".jobs",
            ".remote-scripts": scripts,
            "Python": scripts / "python" if way in {"removed", "renamed"} else self.home / "env" / "bin" / "python",
            "environment": self.home / "env",
            "supervisor": supervisor,
        }
        return paths[thing]

    def standings(self) -> dict[str, states.JobStatus]:
        """How the jobs stand on the server, by the kernel and the records that can be read there."""
        found = {}
        here = states.scan()
        for job in self.jobs:
            folder = self.home / NAME / ".jobs" / job.id
            if folder.exists():
                descriptor = job_folder.open_folder(str(folder))
                try:
                    found[job.id] = states.judge(descriptor, job.id, here)
                finally:
                    os.close(descriptor)
        return found

    def living(self) -> list[int]:
        """Every process of the jobs, and their supervisors, whatever became of their folders."""
        snapshot = ProcessSnapshot()
        ids = {job.id for job in self.jobs}
        marked = [process.pid for process in snapshot.processes.values() if snapshot.mark(process).job_id in ids]
        supervisors = supervisors_by_job(snapshot)
        return marked + [each.pid for job_id in ids for each in supervisors.get(job_id, [])]

    def close(self) -> None:
        """Let the jobs end, and the server."""
        (self.folder / "end").touch()
        try:
            wait_until(lambda: not self.living(), "the end of all jobs")
        finally:
            self.server.stop()


@contextmanager
def disappearing(path: Path, way: str) -> Iterator[Callable[[], None]]:
    """Have something disappear; yields the function that mends it, which is called at the end at the latest."""
    with ExitStack() as stack:
        stack.callback(_WAYS[way](path))
        yield stack.close


def _remove(path: Path) -> Callable[[], None]:
    kept = path.with_name(f"{path.name}.kept")
    if path.is_dir():
        shutil.copytree(path, kept, symlinks=True)
    else:
        shutil.copy2(path, kept, follow_symlinks=False)
    _delete(path)
    return lambda: _put_back(kept, path)


def _rename(path: Path) -> Callable[[], None]:
    away = path.rename(path.with_name(f"{path.name}.away"))
    return lambda: _put_back(away, path)


def _put_back(kept: Path, path: Path) -> None:
    """As a user does: what was made in its place meanwhile goes."""
    if path.exists() or path.is_symlink():
        _delete(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _mount(path: Path) -> Callable[[], None]:
    """Lay an empty disk over a folder, an empty file of one over a file."""
    if os.geteuid() != 0:
        pytest.skip("a mount needs root")
    disk = path if path.is_dir() else path.with_name(f"{path.name}.disk")
    disk.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", new_name(), str(disk)]
    made = subprocess.run(words, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this system mounts nothing: {made.stderr.strip()}")
    mounted = [disk]
    if disk != path:
        (disk / "empty").touch()
        subprocess.run(["mount", "--bind", str(disk / "empty"), str(path)], check=True)
        mounted.append(path)

    def unmount() -> None:
        for each in reversed(mounted):
            subprocess.run(["umount", "--lazy", str(each)], check=True)

    return unmount


def _forbid(path: Path) -> Callable[[], None]:
    mode = path.stat().st_mode
    path.chmod(0)
    return lambda: path.chmod(mode)


_WAYS: dict[str, Callable[[Path], Callable[[], None]]] = {
    "removed": _remove,
    "renamed": _rename,
    "an empty mount": _mount,
    "permission taken": _forbid,
}
WAYS = tuple(_WAYS)
THINGS = ("home", "project", ".jobs", ".remote-scripts", "Python", "environment", "supervisor")
