"""Every local and remote path, in one place."""

from __future__ import annotations

import os
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
        jobs_folder: Where the records and logs of jobs are kept, relative to root.
        logs_folder: Where the output of steps is kept, relative to root.
        exclude: The rsync patterns that are not sent, relative to root.
    """

    root: Path
    jobs_folder: str = f"{REMOTE_FOLDER}/jobs"
    logs_folder: str = f"{REMOTE_FOLDER}/logs"
    exclude: str = f"{REMOTE_FOLDER}/exclude.txt"

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
        """What there is to do of each fan-out that was started here."""
        return self.remote_folder / "fan-outs"

    @property
    def sharing(self) -> Path:
        """Which servers were found to have the project's folder in common."""
        return self.logs / "sharing"

    def job(self, job_id: str) -> Path:
        return self.jobs / job_id

    def begun_sync(self, server: str) -> Path:
        """What a sync of a server that did not finish may have sent."""
        return self.logs / f"{server}.begun-sync"

    def known_copy(self, server: str) -> Path:
        """What the last sync from here left on a server."""
        return self.logs / f"{server}.known-copy"


@dataclass(frozen=True)
class RemotePaths:
    """The folders of a project on a server, all relative to ``$HOME``.

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
    def jobs(self) -> str:
        return f"{self.project}/{self.jobs_name}"

    @property
    def environment(self) -> str:
        """The environment that we make; an existing one lies where the user says."""
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
        """Locked while somebody sends."""
        return f"{self.scripts}/sync-lock"

    @property
    def sync_owner(self) -> str:
        """Who sends, and since when: ``<seconds since the epoch> <user>@<host>``."""
        return f"{self.scripts}/sync-owner"

    @property
    def sent_files(self) -> str:
        """The files that we sent, with size and time: the only ones that a sync may remove."""
        return f"{self.scripts}/sent"


def current_folder() -> Path:
    """Return the folder that the shell is in.

    Raises:
        UsageError: It is no more.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The current folder has been removed", hint="cd ..") from error


def find_root(start: Path) -> Path:
    """Find the folder with ``.remote/``, here or above, as git does.

    Raises:
        UsageError: There is none.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / REMOTE_FOLDER / "configs.yaml").is_file() or (folder / REMOTE_FOLDER).is_dir():
            return folder
    raise UsageError(
        f"No workspace: {start} has no {REMOTE_FOLDER} folder, nor has any folder above it", hint="remote-tool init"
    )


def user_cache_folder() -> Path:
    """Return the folder of this user for what can be fetched again: downloaded installers."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "remote_tool"
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "remote_tool"
