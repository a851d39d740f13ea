"""Clean this machine: records and logs of jobs, logs of steps, and notes about servers."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobState, launch_name
from remote_tool.jobs.records import JOB_ID, become_cleaned
from remote_tool.protocol import job_folder, removing
from remote_tool.system.locks import lock, unlock
from remote_tool.transport.ssh.endpoint import DEFAULT_PORT
from remote_tool.transport.ssh.host_keys.known_hosts import lookup_names, note_for
from remote_tool.transport.ssh.host_keys.record import forget
from remote_tool.workflows.clean.request import CleanItem
from remote_tool.workflows.work.records import fan_out_files, sweep_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.transport.ssh.host_keys.entries import KnownHostsEntry
    from remote_tool.workflows.clean.request import CleanRequest
    from remote_tool.workflows.context import Context

HERE = ""
JOBS, ARTIFACTS, LOGS, NOTES = "jobs", "artifacts", "logs of steps", "notes"
HOST_KEYS = "host keys"
SECONDS = 600.0
# A program may still be writing a younger file.
YOUNG_SECONDS = 3600.0


def clean_here(
    context: Context, jobs: Sequence[Job], request: CleanRequest, *, emptied: Collection[str], dry_run: bool
) -> list[CleanItem]:
    """List local files; unless ``dry_run``, remove unused ones and these jobs.

    Args:
        context: The command's context.
        jobs: Jobs without files on servers.
        request: A choice of files that may be removed.
        emptied: Servers that have no files of ours any longer.
        dry_run: Remove nothing.
    """
    items = _clean_jobs(context, jobs, request, dry_run=dry_run)
    if not request.jobs:
        local, before = context.config.local, time.time() - max(request.older or 0.0, YOUNG_SECONDS)
        logs = [path for path in _files(local.logs) if path.name.endswith(".log")]
        items.append(_remove(LOGS, logs, [path for path in logs if _changed(path) < before], dry_run=dry_run))
        records = [*_files(local.fan_outs), *_files(local.sweeps)]
        notes = [*records, *_notes_about_servers(local.logs)]
        unused = [*_unused_records(context, records, before), *_unused_notes(context, local.logs, emptied)]
        items.append(_remove(NOTES, notes, unused, dry_run=dry_run))
        items.append(_forget_host_keys(context, emptied, dry_run=dry_run))
    return items


def _clean_jobs(context: Context, jobs: Sequence[Job], request: CleanRequest, *, dry_run: bool) -> list[CleanItem]:
    folder = context.registry.folder
    deadline = time.monotonic() + SECONDS
    matching = {job.id for job in jobs}
    # Pulled artifacts belong to the user: without explicit permission, the record of their job is only revised.
    with_artifacts = {name for name in _names(folder) if (folder / name / ARTIFACTS).is_dir()}
    to_remove = matching if request.artifacts else matching - with_artifacts
    # By whether they are removed.
    job_sizes: dict[bool, list[int]] = {True: [], False: []}
    artifact_sizes: dict[bool, list[int]] = {True: [], False: []}
    for name in _names(folder):
        artifacts = _size(folder / name, ARTIFACTS, deadline) if name in with_artifacts else 0
        job_sizes[name in to_remove].append(_size(folder, name, deadline) - artifacts)
        if name in with_artifacts:
            artifact_sizes[name in to_remove].append(artifacts)
    if not dry_run:
        context.registry.revise((job_id, become_cleaned) for job_id in matching - to_remove)
        context.registry.forget(to_remove, SECONDS)
    why = "--artifacts removes them, with their jobs" if matching - to_remove else ""
    return [_item(JOBS, job_sizes), _item(ARTIFACTS, artifact_sizes, why)]


def _item(what: str, sizes: dict[bool, list[int]], why: str = "") -> CleanItem:
    every = [*sizes[True], *sizes[False]]
    return CleanItem(HERE, what, len(every), sum(every), len(sizes[True]), sum(sizes[True]), why)


def _remove(what: str, every: Sequence[Path], unused: Sequence[Path], *, dry_run: bool) -> CleanItem:
    sizes = {path: _size(path.parent, path.name, time.monotonic() + SECONDS) for path in every}
    if not dry_run:
        for path in unused:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return CleanItem(HERE, what, len(every), sum(sizes.values()), len(unused), sum(sizes[path] for path in unused))


def _notes_about_servers(logs: Path) -> list[Path]:
    return [path for path in _files(logs) if path.name.endswith((".begun-sync", ".known-copy"))]


def _forget_host_keys(context: Context, emptied: Collection[str], *, dry_run: bool) -> CleanItem:
    """Remove the host keys of servers that are no longer configured, or have no files of ours."""
    file, servers = context.config.local.known_hosts, context.config.servers
    known = {note_for(name, servers[name].hostname) for name in servers.keys() - set(emptied)}
    names = {name: lookup_names(servers[name].hostname, servers[name].port or DEFAULT_PORT)[0] for name in servers}
    in_use = {name for server, name in names.items() if server not in emptied}

    def is_forgotten(entry: KnownHostsEntry) -> bool:
        # Lines of older versions do not name their server.
        is_of_emptied = any(names[server] in entry.plain_names and names[server] not in in_use for server in emptied)
        return is_of_emptied or (entry.note != "" and entry.note not in known)

    every = forget(file, lambda _entry: True, dry_run=True)
    size = file.stat().st_size if every else 0
    forgotten = forget(file, is_forgotten, dry_run=dry_run)
    return CleanItem(HERE, HOST_KEYS, every, size, forgotten, size * forgotten // max(1, every))


def _unused_notes(context: Context, logs: Path, emptied: Collection[str]) -> list[Path]:
    """Return the notes about servers that are no longer configured, or have no files of ours."""
    known = context.config.servers.keys() - set(emptied)
    return [path for path in _notes_about_servers(logs) if path.name.rpartition(".")[0] not in known]


def _unused_records(context: Context, files: Sequence[Path], before: float) -> list[Path]:
    """Return the records of fan-outs and sweeps that nobody follows and that have no jobs known here."""
    launches = {job.launch_id for job in context.registry.load()[0]}
    return [path for path in files if path.stem not in launches and _changed(path) < before and not is_followed(path)]


def is_followed(path: Path) -> bool:
    """Return whether a program is handing out a fan-out's shards now; also if this cannot be determined."""
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


def note_done(context: Context, jobs: Iterable[Job]) -> dict[str, str]:
    """Record in fan-outs and sweeps which of their jobs succeeded, so that ``--resume`` knows it without these jobs.

    Returns the reason for each job that has to stay, because this could not be recorded.
    """
    local = context.config.local
    by_launch: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.launch_id and job.node_rank is not None and job.state is JobState.SUCCEEDED:
            by_launch[job.launch_id].append(job)
    kept: dict[str, str] = {}
    for launch_id, succeeded in by_launch.items():
        for files in (fan_out_files(local.fan_outs), sweep_files(local.sweeps)):
            if not files.path(launch_id).exists():
                continue
            try:
                files.note_done(launch_id, {job.node_rank for job in succeeded if job.node_rank is not None})
            except JobError as error:
                why = f"{files.noun} {launch_name(launch_id)} cannot record that it is done: {error}"
                kept |= {job.id: why for job in succeeded}
    return kept


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
