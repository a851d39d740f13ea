"""Clean this machine: records and logs of jobs, logs of steps, and notes about removed servers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.jobs.records import JOB_ID, become_cleaned
from remote_tool.protocol import job_folder, removing
from remote_tool.system.locks import lock, unlock
from remote_tool.transport.ssh.endpoint import DEFAULT_PORT
from remote_tool.transport.ssh.host_keys.known_hosts import lookup_names, note_for
from remote_tool.transport.ssh.host_keys.record import forget
from remote_tool.workflows.clean.request import CleanRequest, Item

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.transport.ssh.host_keys.entries import KnownHostsEntry
    from remote_tool.workflows.clean.request import CleanRequest
    from remote_tool.workflows.context import Context

HERE = ""
JOBS, ARTIFACTS, LOGS, NOTES = "jobs", "artifacts", "logs of steps", "notes"
HOST_KEYS = "host keys"
SECONDS = 600.0
# A younger file may still be being written.
YOUNG_SECONDS = 3600.0


def clean_here(
    context: Context, jobs: Sequence[Job], request: CleanRequest, *, left: Collection[str], dry_run: bool
) -> list[Item]:
    """List local files, and unless ``dry_run`` remove these jobs and unused files.

    Args:
        context: The command's context.
        jobs: Jobs whose servers can no longer be asked.
        request: What may be removed.
        left: Servers without files of ours.
        dry_run: Remove nothing.
    """
    items = _clean_jobs(context, jobs, request, dry_run=dry_run)
    if not request.jobs:
        local, before = context.config.local, time.time() - max(request.older or 0.0, YOUNG_SECONDS)
        logs = [path for path in _files(local.logs) if path.name.endswith(".log")]
        items.append(_remove(LOGS, logs, [path for path in logs if _changed(path) < before], dry_run=dry_run))
        work = [*_files(local.fan_outs), *_files(local.sweeps)]
        notes = [*work, *_notes_about_servers(local.logs)]
        spent = [*_spent_work(context, work, before), *_spent_notes(context, local.logs, left)]
        items.append(_remove(NOTES, notes, spent, dry_run=dry_run))
        items.append(_forget_host_keys(context, left, dry_run=dry_run))
    return items


def _clean_jobs(context: Context, jobs: Sequence[Job], request: CleanRequest, *, dry_run: bool) -> list[Item]:
    folder = context.registry.folder
    deadline = time.monotonic() + SECONDS
    matching = {job.id for job in jobs}
    # Pulled artifacts belong to the user: without explicit permission only the job's record is removed.
    rich = {name for name in _names(folder) if (folder / name / ARTIFACTS).is_dir()}
    going = matching if request.artifacts else matching - rich
    sizes: dict[bool, list[int]] = {True: [], False: []}
    treasures: dict[bool, list[int]] = {True: [], False: []}
    for name in _names(folder):
        artifacts = _size(folder / name, ARTIFACTS, deadline) if name in rich else 0
        sizes[name in going].append(_size(folder, name, deadline) - artifacts)
        if name in rich:
            treasures[name in going].append(artifacts)
    if not dry_run:
        context.registry.revise((job_id, become_cleaned) for job_id in matching - going)
        context.registry.forget(going, SECONDS)
    why = "--artifacts removes them, with their jobs" if matching - going else ""
    return [_item(JOBS, sizes), _item(ARTIFACTS, treasures, why)]


def _item(what: str, sizes: dict[bool, list[int]], why: str = "") -> Item:
    every = [*sizes[True], *sizes[False]]
    return Item(HERE, what, len(every), sum(every), len(sizes[True]), sum(sizes[True]), why)


def _remove(what: str, every: Sequence[Path], going: Sequence[Path], *, dry_run: bool) -> Item:
    sizes = {path: _size(path.parent, path.name, time.monotonic() + SECONDS) for path in every}
    if not dry_run:
        for path in going:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return Item(HERE, what, len(every), sum(sizes.values()), len(going), sum(sizes[path] for path in going))


def _notes_about_servers(logs: Path) -> list[Path]:
    return [path for path in _files(logs) if path.name.endswith((".begun-sync", ".known-copy"))]


def _forget_host_keys(context: Context, left: Collection[str], *, dry_run: bool) -> Item:
    """Remove the host keys of servers that were removed from the configuration, or have no files of ours."""
    file, servers = context.config.local.known_hosts, context.config.servers
    known = {note_for(name, servers[name].hostname) for name in servers.keys() - set(left)}
    names = {name: lookup_names(servers[name].hostname, servers[name].port or DEFAULT_PORT)[0] for name in servers}
    shared = {name for server, name in names.items() if server not in left}

    def is_forgotten(entry: KnownHostsEntry) -> bool:
        # Lines of older versions do not name their server.
        is_of_left = any(names[server] in entry.plain_names and names[server] not in shared for server in left)
        return is_of_left or (entry.note != "" and entry.note not in known)

    every = forget(file, lambda _entry: True, dry_run=True)
    size = file.stat().st_size if every else 0
    goes = forget(file, is_forgotten, dry_run=dry_run)
    return Item(HERE, HOST_KEYS, every, size, goes, size * goes // max(1, every))


def _spent_notes(context: Context, logs: Path, left: Collection[str]) -> list[Path]:
    """Return the notes about unknown servers, and servers without files of ours."""
    known = context.config.servers.keys() - set(left)
    return [path for path in _notes_about_servers(logs) if path.name.rpartition(".")[0] not in known]


def _spent_work(context: Context, files: Sequence[Path], before: float) -> list[Path]:
    """Return those records of fan-outs and sweeps that are not followed and have no jobs known here."""
    launches = {job.launch_id for job in context.registry.load()[0]}
    return [path for path in files if path.stem not in launches and _changed(path) < before and not is_followed(path)]


def is_followed(path: Path) -> bool:
    """Return whether a program is handing out a fan-out's shards now, or this cannot be determined."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        lock(descriptor)
    except OSError:
        return True
    finally:
        unlock(descriptor)
    return False


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return []


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return [path.name for path in folder.iterdir() if JOB_ID.fullmatch(path.name)]
    return []


def _size(parent: Path, name: str, deadline: float) -> int:
    with suppress(OSError):
        folder = job_folder.open_folder(str(parent))
        try:
            return removing.size_of(folder, name, deadline)
        finally:
            os.close(folder)
    return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()
