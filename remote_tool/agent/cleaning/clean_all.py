"""``clean --all``, which shares the scan with ``clean``: remove every trace but the files that jobs wrote."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from remote_tool.agent import states
from remote_tool.agent.cleaning import leftovers
from remote_tool.agent.cleaning.leftovers import LeftoverScan, item
from remote_tool.agent.cleaning.removal import Removal, why_it_stays
from remote_tool.agent.frozen import copies, home
from remote_tool.agent.requests import Folders, Request, is_list
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.records import RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from remote_tool.agent.states import HostSnapshot

# The client's timeout is longer.
_SECONDS = 540.0
ENVIRONMENT, FILES, CONDA, OURS = "environment", "sent files", "conda", "remote-tool"
_CACHES = (".cache/remote_tool", ".cache/remote-tool")
_LARGEST = 64 * 1024 * 1024
_MOST_FOLDERS = 1000


def clean_all(removal: Removal, request: Request, scripts: Optional[int]) -> List[Dict[str, Any]]:
    """Remove all our files, unless a job is running; list them."""
    folders = removal.folders
    removal.deadline = time.monotonic() + _SECONDS
    scan = LeftoverScan(folders, scripts, dry_run=removal.dry_run, deadline=removal.deadline)
    prefix = os.path.join(folders.scripts, "environment")
    _refuse_while_used(removal, prefix)
    if not removal.dry_run:
        _prevent_starts(removal, scripts, prefix)
    jobs = removal.jobs_item()
    items = [
        {**jobs, "goes": jobs["count"], "frees": jobs["bytes"]},
        scan.syncs(request.get("begun", is_list, default=[])),
        _remove_sent(folders, dry_run=removal.dry_run),
        _remove_condas(scan, prefix),
        _remove_ours(removal, scan, scripts),
    ]
    if not removal.dry_run:
        _remove_empty(folders.project)
    return items


def _remove_empty(folder: str) -> None:
    """Remove a project's folder if empty, and empty parents of a name such as dev/digits."""
    home = os.environ["HOME"].rstrip("/")
    with suppress(OSError):
        os.rmdir(folder)
        while os.path.dirname(folder).startswith(home + os.sep):
            folder = os.path.dirname(folder)
            os.rmdir(folder)


def _refuse_while_used(removal: Removal, prefix: str) -> None:
    host = states.scan()
    names = [] if removal.jobs is None else [name for name in removing.names_in(removal.jobs) if is_job_id(name)]
    for name in names:
        try:
            folder = job_folder.open_job(removal.jobs, name)
            if folder is None:
                continue
            try:
                why = _why_in_use(folder, name, host)
            finally:
                os.close(folder)
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
        if why:
            raise RequestError(f"Cannot remove everything: job {name}: {why}", hint="remote-tool job-kill, then again")
    if os.path.isdir(prefix) and leftovers.is_used(prefix + os.sep):
        raise RequestError(
            "Cannot remove everything: processes use the environment", hint="remote-tool job-kill --orphans, then again"
        )


def _why_in_use(folder: int, name: str, host: HostSnapshot) -> str:
    """Return why a job is in use; without a readable record, only its living processes say so."""
    try:
        return why_it_stays(folder, states.judge(folder, name, host))
    except RecordError as error:
        is_alive = states.is_looked_after(folder) or host.snapshot.members(name, job_folder.path_of(folder))
        return f"it is running, and its record cannot be read: {error}" if is_alive else ""


def _prevent_starts(removal: Removal, scripts: Optional[int], prefix: str) -> None:
    """Prevent new starts; a start that is already underway undoes this."""
    for parent, name, what in ((scripts, "lock", "a setup"), (scripts, "sync-lock", "a sync")):
        if parent is not None and not leftovers.can_lock(parent, name):
            raise RequestError(f"Cannot remove everything: {what} is running", hint="remote-tool clean --all, later")
    if removal.jobs is not None:
        try:
            fcntl.flock(removal.jobs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError("Cannot remove everything: a job is starting", hint="remote-tool job-list") from None
        except OSError:
            pass  # a file system without locks
    aside = removing.set_aside(scripts, "activation.json") if scripts is not None else ""
    try:
        _refuse_while_used(removal, prefix)
        _bring_home(removal.folders)
    except RequestError:
        if scripts is not None and aside:
            os.rename(aside, "activation.json", src_dir_fd=scripts, dst_dir_fd=scripts)
        raise


def _bring_home(folders: Folders) -> None:
    """Bring the output of jobs from copies into the project, where it stays.

    Raises:
        RequestError: Some of it cannot be brought.
    """
    if not os.path.isdir(folders.copies):
        return
    for copy in copies.copies_in(folders):
        why = home.bring_whole(copy, folders, has_sync_lock=True)
        if why:
            raise RequestError(
                f"Cannot remove everything: output of a job cannot be brought into the project: {why}",
                hint=f"Move it out of {copy.code} on the server, then again",
            )


def _remove_sent(folders: Folders, *, dry_run: bool) -> Dict[str, Any]:
    """Remove the project's files that are unchanged since they were sent; follow no links."""
    # Of a project that is used where it is, nothing was sent.
    sent = sorted(leftovers.read_sent(folders.sent_files), key=_deepest_first)
    if not sent:
        return item(FILES, 0, 0, 0, 0)
    project = os.open(folders.project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    ours = {os.path.basename(folders.scripts), os.path.basename(folders.jobs)}
    count = goes = size = frees = 0
    for length, modified, path in sent:
        parts = os.fsdecode(path).rstrip("/").split("/")
        if ".." in parts or "" in parts or parts[0] in ours:
            continue
        parent = _open_plain(project, parts[:-1])
        if parent is None:
            continue
        is_ours, found = _as_sent(parent, parts[-1], length, modified)
        is_folder = path.endswith(b"/")
        count, size = count + (found > 0 and not is_folder), size + found * (not is_folder)
        if is_folder and not dry_run:
            with suppress(OSError):
                os.rmdir(parts[-1], dir_fd=parent)
        elif is_ours and not is_folder:
            goes, frees = goes + 1, frees + found
            if not dry_run:
                job_folder.remove(parent, parts[-1])
        os.close(parent)
    os.close(project)
    return item(FILES, count, size, goes, frees)


def _deepest_first(record: List[bytes]) -> Tuple[bool, int, bytes]:
    path = record[2]
    return path.endswith(b"/"), -path.count(b"/"), path


def _as_sent(parent: int, name: str, length: bytes, modified: bytes) -> Tuple[bool, int]:
    """Return whether a file is unchanged since it was sent, and its size on disk in bytes."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False, 0
    same = (b"%d" % found.st_size, b"%d" % int(found.st_mtime)) == (length, modified)
    return same, max(1, found.st_blocks * 512)


def _open_plain(folder: int, parts: List[str]) -> Optional[int]:
    """Open a nested folder; None if a component is missing or a link."""
    opened = os.dup(folder)
    for part in parts:
        try:
            inner = job_folder.open_folder(part, opened)
        except OSError:
            return None
        finally:
            os.close(opened)
        opened = inner
    return opened


def _remove_condas(scan: LeftoverScan, prefix: str) -> Dict[str, Any]:
    """Remove the conda that setup installed, unless it has other environments."""
    home = leftovers.open_home()
    found: List[Tuple[int, str]] = []
    stays = ""
    for base in leftovers.CONDAS:
        with suppress(OSError):
            real = os.readlink(base, dir_fd=home)
            if not real.startswith(f".{base}.") or "/" in real:
                continue
            found += [(home, base), (home, real)]
            paths = [os.path.join(os.environ["HOME"], name) for name in (base, real)]
            if _has_others(paths, prefix):
                stays = "it has other environments"
            elif any(leftovers.is_used(path + os.sep) for path in paths):
                stays = "processes use it"
    row = scan.take(CONDA, found, stays=stays)
    if found and not stays and not scan.dry_run:
        _forget_environments(prefix)
    return row


def _has_others(condas: List[str], prefix: str) -> bool:
    """Return whether a conda has recorded environments other than ours, or another project uses it."""
    own = {prefix, *condas}
    listed = [line.strip() for line in _conda_notes().splitlines()]
    noted = [line for line in listed if line and line not in own and os.path.isdir(line)]
    within = [name for path in condas for name in _names(os.path.join(path, "envs")) if not name.startswith(".")]
    return bool(noted or within)


def _conda_notes() -> str:
    try:
        with open(os.path.join(os.environ["HOME"], ".conda", "environments.txt"), encoding="utf-8") as file:
            return file.read(_LARGEST)
    except (OSError, ValueError):
        return ""


def _forget_environments(prefix: str) -> None:
    """Remove conda's list of environments when none of them exists any longer."""
    folder = os.path.join(os.environ["HOME"], ".conda")
    left = [line for line in _conda_notes().splitlines() if line.strip() != prefix and os.path.isdir(line.strip())]
    with suppress(OSError):
        if not left:
            os.unlink(os.path.join(folder, "environments.txt"))
            os.rmdir(folder)


def _remove_ours(removal: Removal, scan: LeftoverScan, scripts: Optional[int]) -> Dict[str, Any]:
    """Remove our folders; the one that this program runs from is removed last."""
    home = leftovers.open_home()
    found: List[Tuple[int, str]] = []
    project = os.open(removal.folders.project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    own = os.path.basename(removal.folders.scripts)
    if removal.jobs is not None and not removal.dry_run:
        _remove_jobs(removal, project, scripts)
    if not _is_of_others(own, removal.folders.project):
        found += [(home, name) for name in _CACHES if job_folder.exists(home, name)]
    if scripts is not None:
        found.append((project, own))
    return scan.take(OURS, found)


def _remove_jobs(removal: Removal, project: int, scripts: Optional[int]) -> None:
    """Remove the folder of all jobs; its size is reported separately."""
    parent, name = project, os.path.basename(removal.folders.jobs)
    if scripts is not None:
        aside = f"{removing.MARK}{os.urandom(8).hex()}"
        with suppress(OSError):
            # Moving it away is atomic; on another disk it is removed in place.
            os.rename(name, aside, src_dir_fd=project, dst_dir_fd=scripts)
            parent, name = scripts, aside
    removing.remove(parent, name, removal.deadline)


def _is_of_others(own: str, project: str) -> bool:
    """Return whether another of our projects is in this home, and may need the shared files."""
    folders = [os.environ["HOME"]]
    # A project named like dev/digits is nested deeper; in a large home the search stops early.
    for folder in folders:
        for path in (os.path.join(folder, name) for name in _names(folder)):
            if path != project and os.path.isdir(os.path.join(path, own)):
                return True
            is_searched = path != project and not os.path.basename(path).startswith(".")
            if is_searched and len(folders) < _MOST_FOLDERS and os.path.isdir(path) and not os.path.islink(path):
                folders.append(path)
    return False


def _names(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
