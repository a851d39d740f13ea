"""Unused files on a server other than jobs: old versions, incomplete environments and syncs, old notes."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from remote_tool.agent.requests import Folders, Request, is_list
from remote_tool.protocol import job_folder, removing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

SUPERVISORS, ENVIRONMENTS, SYNCS, NOTES = "old supervisors", "half-made environments", "partial syncs", "notes"
PARTIAL = ".remote-tool-partial"
_VERSION = "supervisor-"
_HOUR, _DAY = 3600.0, 86400.0
# Held while an environment is created, and while the agent is sent.
_SETUP_LOCK, _SYNC_LOCK = "lock", "sync-lock"
# Versions that other laptops may have used lately.
_UNUSED_SECONDS = 7 * _DAY
_MOST_VERSIONS = 5
_PORTS = ".cache/remote-tool/ports"
_PORT_SECONDS = _HOUR
_INSTALLERS = ".cache/remote_tool"
CONDAS = ("miniconda3", "miniforge3")
_ENVIRON_LIMIT = 1024 * 1024
_LARGEST_LIST = 64 * 1024 * 1024
NOT_ALL = "some of it could not be removed"


def item(what: str, count: int, size: int, goes: int, frees: int) -> Dict[str, Any]:
    """Return a row for the client's table."""
    return {"what": what, "count": count, "bytes": size, "goes": goes, "frees": frees, "why": ""}


class LeftoverScan:
    """A scan for unused files that belong to no job; each is removed unless in use."""

    def __init__(self, folders: Folders, scripts: Optional[int], *, dry_run: bool, deadline: float) -> None:
        self._folders = folders
        self._scripts = scripts
        self.dry_run = dry_run
        self._deadline = deadline

    def take(self, what: str, found: List[Tuple[int, str]], *, stays: str = "") -> Dict[str, Any]:
        """Remove entries of some folders, unless there is a reason to keep them."""
        sizes = {each: removing.size_of(*each, self._deadline) for each in found}
        removed = [each for each in found if not stays and (self.dry_run or removing.remove(*each, self._deadline))]
        row = item(what, len(found), sum(sizes.values()), len(removed), sum(sizes[each] for each in removed))
        return {**row, "why": "" if len(removed) == len(found) else stays or NOT_ALL}

    def supervisors(self, current: str) -> Dict[str, Any]:
        """Remove versions other than the current one, and incomplete versions."""
        if self._scripts is None:
            return item(SUPERVISORS, 0, 0, 0, 0)
        names = [name for name in removing.names_in(self._scripts) if name.startswith(_VERSION) and name != current]
        used = versions_in_use() if names else set()
        found = [(self._scripts, name) for name in names]
        row = self.take(SUPERVISORS, [each for each in found if each[1] not in used and not self._is_new_half(each[1])])
        row["count"] = len(names)
        return row

    def _is_new_half(self, name: str) -> bool:
        """Return whether another client may be sending it now."""
        return ".new." in name and age_of(self._scripts or 0, name) < _HOUR

    def environment(self) -> Dict[str, Any]:
        """Remove an unfinished environment and an unfinished conda installation."""
        found: List[Tuple[int, str]] = []
        stays = ""
        if self._scripts is not None and job_folder.exists(self._scripts, "environment"):
            prefix = os.path.join(self._folders.scripts, "environment")
            if not is_finished(self._folders, prefix):
                found.append((self._scripts, "environment"))
                if not can_lock(self._scripts, _SETUP_LOCK) or is_used(prefix):
                    stays = "a setup is running"
        home = open_home()
        for base in CONDAS:
            name = _unfinished_conda(home, base)
            if name and job_folder.exists(home, name):
                found.append((home, name))
                if not can_lock(home, f"{_INSTALLERS}/{base}.lock") or is_used(f"{os.environ['HOME']}/{name}"):
                    stays = "a setup is running"
        return self.take(ENVIRONMENTS, found, stays=stays)

    def syncs(self, begun: List[Any]) -> Dict[str, Any]:
        """Remove rsync's partial files, in our folder and beside their targets, also behind a link on the server."""
        found: List[Tuple[int, str]] = []
        if self._scripts is not None:
            names = [name for name in removing.names_in(self._scripts) if _is_of_sync(name)]
            found = [(self._scripts, name) for name in names]
        found += [(parent, PARTIAL) for parent in self._partial_parents(begun)]
        is_busy = bool(found) and self._scripts is not None and not can_lock(self._scripts, _SYNC_LOCK)
        return self.take(SYNCS, found, stays="a sync is running" if is_busy else "")

    def _partial_parents(self, begun: List[Any]) -> Iterator[int]:
        """Open the project's folders that may hold partial files: plain ones, and targets of a sync."""
        project = self._folders.project
        ours = {os.path.basename(self._folders.scripts), os.path.basename(self._folders.jobs)}
        sent = _sent_folders(self._folders.sent_files)
        known = {"", *sent, *(name.strip("/") for name in begun if isinstance(name, str))}
        seen = set()
        for path in [*_plain_folders(project, ours, self._deadline), *(os.path.join(project, name) for name in known)]:
            place = os.path.join(path, PARTIAL)
            try:
                status = os.lstat(place)
                if not os.path.isdir(place) or os.path.islink(place) or (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                yield os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue

    def notes(self) -> Dict[str, Any]:
        """Remove notes of ports and temporary files of killed programs."""
        home = open_home()
        found: List[Tuple[int, str]] = []
        for parent, prefix, seconds in (
            (_open_below(home, _PORTS), "", _PORT_SECONDS),
            (self._scripts, "mark-", _HOUR),
            (_open_below(home, os.path.relpath(self._folders.jobs, os.environ["HOME"])), ".clock-", _HOUR),
        ):
            if parent is None:
                continue
            names = [name for name in removing.names_in(parent) if name.startswith(prefix)]
            found += [(parent, name) for name in names if age_of(parent, name) > seconds]
        return self.take(NOTES, found)


def clean(
    folders: Folders, scripts: Optional[int], request: Request, *, dry_run: bool, deadline: float
) -> List[Dict[str, Any]]:
    """Remove unused files; return the rows."""
    scan = LeftoverScan(folders, scripts, dry_run=dry_run, deadline=deadline)
    if scripts is not None and not dry_run:
        removing.remove_marked(scripts, deadline)
    begun = request.get("begun", is_list, default=[])
    current = own_version()
    return [scan.supervisors(current), scan.environment(), scan.syncs(begun), scan.notes()]


def own_version() -> str:
    """Return the name of this program's version folder."""
    return os.path.basename(os.path.abspath(__file__).rpartition("/remote_tool/")[0])


def age_of(parent: int, name: str) -> float:
    """Return the seconds since the last change; 0 if it does not exist."""
    try:
        return time.time() - os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def remove_old_versions(scripts_folder: str) -> None:
    """Remove versions unused for a week, or beyond the newest few, that no process was started from."""
    current = own_version()
    with suppress(OSError):
        scripts = job_folder.open_folder(scripts_folder)
        try:
            names = [name for name in removing.names_in(scripts) if name.startswith(_VERSION) and name != current]
            names.sort(key=lambda name: age_of(scripts, name))
            old = [
                name
                for number, name in enumerate(names)
                if age_of(scripts, name) > _UNUSED_SECONDS or number >= _MOST_VERSIONS - 1
            ]
            used = versions_in_use() if old else set()
            for name in old:
                if name not in used and age_of(scripts, name) > _HOUR:
                    removing.remove(scripts, name, time.monotonic() + 1.0)
        finally:
            os.close(scripts)


def versions_in_use() -> set[str]:
    """Return the version folders that living processes were started from."""
    found = set()
    for _, text in _texts_of_processes("cmdline"):
        for word in text.split(b"\0"):
            parts = word.split(b"/")
            found |= {os.fsdecode(part) for part in parts[:-1] if part.startswith(_VERSION.encode("ascii"))}
    return found


def is_used(path: str) -> bool:
    """Return whether a process names a folder in its arguments or environment."""
    needle = os.fsencode(path)
    own = os.getpid()
    return any(
        needle in text for name in ("cmdline", "environ") for pid, text in _texts_of_processes(name) if pid != own
    )


def is_finished(folders: Folders, prefix: str) -> bool:
    """Return whether a finished setup recorded an environment, or the record cannot be read now."""
    try:
        with open(folders.activation, "rb") as file:
            return os.fsencode(prefix) in file.read()
    except FileNotFoundError:
        return False
    except OSError:
        return True


def open_home() -> int:
    return os.open(os.environ["HOME"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_below(home: int, path: str) -> Optional[int]:
    try:
        return job_folder.open_folder(path, home)
    except OSError:
        return None


def _unfinished_conda(home: int, base: str) -> str:
    """Return the name of the folder that an installation of conda recorded when it began."""
    with suppress(OSError):
        file = os.open(f"{_INSTALLERS}/{base}.unfinished", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=home)
        try:
            name = os.read(file, 256).decode("ascii", "replace").strip()
        finally:
            os.close(file)
        if name.startswith(f".{base}.") and "/" not in name and ".." not in name:
            return name
    return ""


def _is_of_sync(name: str) -> bool:
    return name in {"partial", "arriving"} or name.startswith(".sent.")


def can_lock(parent: int, path: str) -> bool:
    """Return whether a lock is free; if so, hold it until this program exits."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    except OSError:
        return True
    return True


def _texts_of_processes(name: str) -> Iterator[Tuple[int, bytes]]:
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with suppress(OSError):
                with open(f"/proc/{pid}/{name}", "rb") as stream:
                    text = stream.read(_ENVIRON_LIMIT)
                yield int(pid), text


def _plain_folders(project: str, ours: set[str], deadline: float) -> List[str]:
    """Return a project's folders, without following links, crossing file systems or entering our folders."""
    found = []
    try:
        device = os.stat(project).st_dev
    except OSError:
        return []
    for path, folders, _ in os.walk(project):
        if removing.is_over(deadline):
            break
        found.append(path)
        folders[:] = [
            name
            for name in folders
            if not (path == project and name in ours) and name != PARTIAL and _is_on(os.path.join(path, name), device)
        ]
    return found


def _is_on(path: str, device: int) -> bool:
    try:
        return os.lstat(path).st_dev == device
    except OSError:
        return False


def read_sent(path: str) -> List[List[bytes]]:
    """Return size, time and name of each sent file; nothing if unknown."""
    try:
        with open(path, "rb") as file:
            records = file.read(_LARGEST_LIST).split(b"\0")
    except OSError:
        return []
    return [record.split(b" ", 2) for record in records if record.count(b" ") > 1]


def _sent_folders(path: str) -> set[str]:
    """Return the folders that a sync has sent files to."""
    names = [os.fsdecode(name) for _, _, name in read_sent(path)]
    folders = {name.rstrip("/") if name.endswith("/") else os.path.dirname(name) for name in names}
    return {name for name in folders if ".." not in name.split("/") and not name.startswith("/")}
