"""Every local and remote path, in one place."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from remote_tool.errors import UsageError

REMOTE_FOLDER = ".remote"


@dataclass(frozen=True)
class LocalPaths:
    """The files of a workspace on this machine.

    Attributes:
        root: The project folder, absolute.
        jobs_folder: The folder of the records and logs of jobs, relative to root.
        logs_folder: The folder of the output of steps, relative to root.
        exclude: The file of rsync patterns that are not sent, relative to root.
        artifacts_folder: The folder of pulled artifacts, absolute; None: beside the record of each job.
    """

    root: Path
    jobs_folder: str = f"{REMOTE_FOLDER}/jobs"
    logs_folder: str = f"{REMOTE_FOLDER}/logs"
    exclude: str = f"{REMOTE_FOLDER}/exclude.txt"
    artifacts_folder: Path | None = None

    @property
    def remote_folder(self) -> Path:
        return self.root / REMOTE_FOLDER

    @property
    def config_file(self) -> Path:
        return self.remote_folder / "configs.yaml"

    @property
    def exclude_file(self) -> Path:
        return self.root / self.exclude

    @property
    def known_hosts(self) -> Path:
        return self.remote_folder / "known_hosts"

    @property
    def jobs(self) -> Path:
        return self.root / self.jobs_folder

    @property
    def logs(self) -> Path:
        return self.root / self.logs_folder

    @property
    def fan_outs(self) -> Path:
        """The work of each fan-out that was started here."""
        return self.remote_folder / "fan-outs"

    @property
    def sweeps(self) -> Path:
        """The combinations of each sweep that was started here."""
        return self.remote_folder / "sweeps"

    @property
    def sharing(self) -> Path:
        """The groups of servers that share the project folder."""
        return self.logs / "sharing"

    @property
    def searched_files(self) -> Path:
        """The files of the project that were searched for private keys."""
        return self.logs / "looked-into"

    @property
    def listing(self) -> Path:
        """The result of the last listing of the project."""
        return self.logs / "listing"

    @property
    def held_back(self) -> Path:
        """The files that were reported as not sent."""
        return self.logs / "held-back"

    @property
    def chosen_server(self) -> Path:
        """The server for job-run without ``--server``, as the user answered on a terminal."""
        return self.logs / "chosen-server"

    def job(self, job_id: str) -> Path:
        return self.jobs / job_id

    def changes(self, job_id: str) -> Path:
        """The changes that were not committed when a job with frozen code was started."""
        return self.job(job_id) / "changes.patch"

    def artifacts(self, job_id: str) -> Path:
        """The folder of the artifacts of a job."""
        # The user's own folder may be a link; below it none is followed.
        chosen = self.artifacts_folder
        return self.job(job_id) / "artifacts" if chosen is None else chosen.resolve() / job_id

    @property
    def artifacts_in_project(self) -> tuple[str, ...]:
        """The folders of artifacts in the project, relative to root: as written, and with links resolved."""
        if self.artifacts_folder is None:
            return ()
        as_written = Path(os.path.normpath(self.artifacts_folder)), self.root
        behind_links = self.artifacts_folder.resolve(), self.root.resolve()
        return tuple(
            str(path.relative_to(root)) for path, root in (as_written, behind_links) if path.is_relative_to(root)
        )

    @property
    def workspace_id(self) -> Path:
        """The random id of this workspace on servers; it is with the logs, which are in no repository."""
        return self.logs / "workspace"

    def begun_sync(self, server: str) -> Path:
        """Files that an interrupted sync to a server may have sent."""
        return self.logs / f"{server}.begun-sync"

    def known_copy(self, server: str) -> Path:
        """The state of a server after the last sync from this machine."""
        return self.logs / f"{server}.known-copy"


@dataclass(frozen=True)
class RemotePaths:
    """The folders of a project on a server, relative to ``$HOME``; absolute if that is this machine.

    A login may start elsewhere than in ``$HOME``, so scripts begin with ``cd "$HOME"``.

    Attributes:
        project: The synced project, the jobs' working folder.
        scripts_name: Name of our folder inside the project.
        jobs_name: Name of the folder of the jobs inside the project.
    """

    project: str
    scripts_name: str = ".remote-scripts"
    jobs_name: str = ".jobs"

    @property
    def scripts(self) -> str:
        return f"{self.project}/{self.scripts_name}"

    @property
    def programs(self) -> str:
        """The folder of the control program and its Python."""
        return self.scripts

    @property
    def jobs(self) -> str:
        return f"{self.project}/{self.jobs_name}"

    @property
    def copies(self) -> str:
        """The folder of the copies of the project that jobs run in."""
        return f"{self.scripts}/copies"

    @property
    def environment(self) -> str:
        """The environment that remote-tool creates; an existing one is elsewhere."""
        return f"{self.scripts}/environment"

    @property
    def activation(self) -> str:
        """JSON: ``{"prefix", "python", "variables": {…}, "path": […]}``; written last."""
        return f"{self.scripts}/activation.json"

    @property
    def python(self) -> str:
        """A link to the environment's interpreter; the supervisor runs with it."""
        return f"{self.scripts}/python"

    @property
    def packages_fingerprint(self) -> str:
        return f"{self.scripts}/packages"

    @property
    def sync_state(self) -> str:
        """``complete <snapshot>`` or ``incomplete <snapshot> <mark of the sync>``."""
        return f"{self.scripts}/sync"

    @property
    def sync_lock(self) -> str:
        """Locked during a sync."""
        return f"{self.scripts}/sync-lock"

    @property
    def sync_owner(self) -> str:
        """The sender of a sync and its beginning: ``<seconds since the epoch> <user>@<host>``."""
        return f"{self.scripts}/sync-owner"

    @property
    def workspaces(self) -> str:
        """The workspaces that have sent the project here."""
        return f"{self.scripts}/workspaces"

    @property
    def sent_files(self) -> str:
        """The files that we sent, with size and time: the only ones that a sync may remove."""
        return f"{self.scripts}/sent"

    @property
    def own_files(self) -> str:
        """The files of a project on this machine that a sync would send: nothing ever removes them."""
        return f"{self.scripts}/own"


@dataclass(frozen=True)
class DataPaths(RemotePaths):
    """A data set's folder on a server; the state of its syncs is beside it, on the same disk.

    An absolute target is relative to ``/``, which scripts then use as ``$HOME``.

    Attributes:
        programs_folder: The folder of the control program in the project, relative to the home folder.
    """

    programs_folder: str = ""

    @property
    def programs(self) -> str:
        return self.programs_folder

    @property
    def scripts(self) -> str:
        folder, _, name = self.project.rpartition("/")
        return f"{folder}{'/' if folder else ''}.{name}{self.scripts_name}"


def shell_path(path: str) -> str:
    """Quote a path for the shell; a relative path, or one with ``~/``, starts at ``$HOME``."""
    if path == "~":
        return '"$HOME"'
    if path.startswith("/"):
        return shlex.quote(path)
    return f'"$HOME"/{shlex.quote(path.removeprefix("~/"))}'


def readable_folder(path: str) -> str:
    """Return a folder on a server for messages: one that is relative to the home folder begins with ``~/``."""
    return path if path.startswith("/") else f"~/{path}"


def current_folder() -> Path:
    """Return the current folder.

    Raises:
        UsageError: It has been removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The current folder has been removed", hint="cd ..") from error


def find_root(start: Path) -> Path:
    """Find the folder that contains ``.remote/``, starting here and going up, as git does.

    Raises:
        UsageError: There is no such folder.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / REMOTE_FOLDER / "configs.yaml").is_file() or (folder / REMOTE_FOLDER).is_dir():
            return folder
    raise UsageError(
        f"No workspace: neither {start} nor any folder above it contains a {REMOTE_FOLDER} folder",
        hint="remote-tool init",
    )


def inside_project(root: Path, folder: Path) -> str | None:
    """Return a folder relative to the project folder: empty for that folder itself, None for one outside."""
    path = Path(os.path.normpath(folder))
    if not path.is_relative_to(root):
        return None
    return "" if path == root else path.relative_to(root).as_posix()


def user_cache_folder() -> Path:
    """Return the cache folder of this user: for downloaded installers."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "remote_tool"
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "remote_tool"
