"""The jobs that this checkout knows: each has a folder with a readable record and its pulled logs."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.index import RECORD, Index, values_of
from remote_tool.jobs.job import Job, JobSpec, JobState
from remote_tool.jobs.record_file import (
    DamagedRecordError,
    as_job,
    format_record,
    read_key,
    read_record,
    read_stamped,
)
from remote_tool.jobs.records import JOB_ID, merge
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.job_fields import JOB_FIELDS
from remote_tool.system.files import sync_folder, sync_folders, write_all_atomically
from remote_tool.system.locks import holders, lock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

LOCK_TIMEOUT = 20.0
_OF_SPEC = frozenset(field.name for field in fields(JobSpec)) & {field.name for field in JOB_FIELDS}


class Registry:
    """The records under ``.remote/jobs``.

    A record is YAML with one ``name: value`` per line, each value JSON: readable for people and YAML readers. Records
    are written atomically, under a lock. Finished jobs also have a line in an index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = Index(folder)
        self._ended: dict[str, str] = {}

    @property
    def ended(self) -> Mapping[str, str]:
        """The server of each job whose end is final, by id; empty if the server has removed the job."""
        return self._ended

    def create(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Record jobs before they are started, and assign keys."""
        now = time.time()
        return self.adopt(
            Job(key=0, state=JobState.STARTING, created_at=now, **{name: getattr(spec, name) for name in _OF_SPEC})
            for spec in specs
        )

    def adopt(self, jobs: Iterable[Job]) -> list[Job]:
        """Record jobs that are new here, and assign keys; existing ones are unchanged.

        A damaged record is replaced by the job's current state, and keeps its key if still readable.

        Raises:
            JobError: A record cannot be read now, or is from a newer version; it is not changed.
        """
        with self.locked():
            last = key = self._last_key()
            recorded, new, repaired = [], [], []
            for job in jobs:
                path = self._record(job.id)
                try:
                    recorded.append(read_record(path))
                except FileNotFoundError:
                    key += 1
                    new.append(self._with_keys(replace(job, key=key)))
                except DamagedRecordError:
                    if not path.is_file():
                        raise
                    readable_key = read_key(path)
                    key += readable_key == 0
                    repaired.append(replace(job, key=readable_key or key))
            if key != last:
                # Before the records: if killed in between, this leaves a gap, never two jobs with one key.
                self._write_last_key(key)
            self._write_all(new)
            self._write(repaired)
        return [*recorded, *new, *repaired]

    def _write_all(self, new: Sequence[Job]) -> None:
        """Write new records: all, or none if the disk is full."""
        try:
            self._write(new)
            sync_folder(self.folder)
        except OSError:
            for job in new:
                with suppress(OSError):
                    self._record(job.id).unlink()
            raise

    def update(self, jobs: Iterable[Job]) -> list[Job]:
        """Record the servers' answers about jobs; a final end never changes."""
        return self.revise((seen.id, partial(merge, seen=seen)) for seen in jobs)

    def revise(self, changes: Iterable[tuple[str, Callable[[Job], Job]]]) -> list[Job]:
        """Change records, reading them first: another program may have changed them."""
        with self.locked():
            revised: list[Job] = []
            changed: dict[str, Job] = {}
            for job_id, change in changes:
                try:
                    known = changed.get(job_id) or read_record(self._record(job_id))
                except (JobError, FileNotFoundError):
                    # The record is damaged or was removed meanwhile: load reports it, and other jobs are updated.
                    continue
                new = self._with_keys(change(known))
                if new != known:
                    changed[job_id] = new
                revised.append(new)
            self._write(changed.values())
            for job in revised:
                self._note_end(job)
        return revised

    def with_keys(self, text: str) -> str:
        """Return a text of a server, which has ids of jobs, with their keys and names in place of these."""
        ids = set(JOB_ID.findall(text))
        for job in self.find(ids).values() if ids else ():
            name = f" ({job.name})" if job.name else ""
            # Without the space, the id is a part of the name of a file.
            text = text.replace(f" {job.id}", f" {job.key}{name}")
        return text

    def _with_keys(self, job: Job) -> Job:
        reason = self.with_keys(job.reason)
        return job if reason == job.reason else replace(job, reason=reason)

    def forget(self, ids: Iterable[str], seconds: float = LOCK_TIMEOUT) -> None:
        """Remove the records and logs of jobs; each disappears at once, but freeing its space takes time.

        Keys are not reused. The next call removes the rest if this one had too little time.
        """
        with self.locked():
            # Without this file, keys are counted from the records.
            self._write_last_key(self._last_key())
            folder = job_folder.open_folder(str(self.folder))
            try:
                for job_id in ids:
                    removing.set_aside(folder, self._record(job_id).parent.name)
                    self._ended.pop(job_id, None)
            finally:
                os.close(folder)
        folder = job_folder.open_folder(str(self.folder))
        try:
            removing.remove_marked(folder, time.monotonic() + seconds)
        finally:
            os.close(folder)

    def load(self) -> tuple[list[Job], list[str]]:
        """Return all jobs by key, and a message for each unreadable record."""
        names = self._names()
        lines = self._index.lines(names)
        jobs, bad = self._read(name for name in names if name not in lines)
        try:
            jobs += [as_job(values) for values in values_of(lines)]
        except (ValueError, KeyError, TypeError):
            # The index is corrupt or forged.
            jobs, bad = self._read(names)
        for job in jobs:
            self._note_end(job)
        self._index.keep(names)
        return sorted(jobs, key=lambda job: job.key), bad

    def load_unfinished(self) -> tuple[list[Job], list[str]]:
        """Return the jobs of :meth:`load` without those in :attr:`ended`, whose ends are final.

        Includes lost jobs, which may be found later. Reading a lost job's record takes about 0.1 ms.
        """
        all_names = self._names()
        for name in self._ended.keys() - set(all_names):
            del self._ended[name]
        names = [name for name in all_names if name not in self._ended]
        lines = self._index.lines(names)
        self._ended.update((name, line.server) for name, line in lines.items())
        jobs, bad = self._read(name for name in names if name not in lines)
        for job in jobs:
            self._note_end(job)
        self._index.keep(all_names)
        return sorted((job for job in jobs if not job.state.is_final), key=lambda job: job.key), bad

    def load_newest(self, count: int) -> list[Job]:
        """Return the jobs created last, by key, if their records are readable."""
        return sorted(self._read(sorted(self._names())[-count:])[0], key=lambda job: job.key)

    def find(self, ids: Collection[str]) -> dict[str, Job]:
        """Return these jobs by id, if they have readable records."""
        return {job.id: job for job in self._read(ids)[0]}

    def _read(self, names: Iterable[str]) -> tuple[list[Job], list[str]]:
        jobs, bad = [], []
        for name in names:
            try:
                job, state = read_stamped(f"{self.folder}/{name}/{RECORD}", name)
            except FileNotFoundError:
                continue
            except JobError as error:
                bad.append(error.message)
                continue
            jobs.append(job)
            if job.state.is_final:
                self._index.add(job, state)
        return jobs, bad

    def _note_end(self, job: Job) -> None:
        if job.state.is_final:
            self._ended[job.id] = "" if job.cleaned else job.server

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.folder) if JOB_ID.fullmatch(name)]  # noqa: PTH208 - no stat each
        except FileNotFoundError:
            return []

    def _record(self, job_id: str) -> Path:
        if not JOB_ID.fullmatch(job_id):
            raise JobError(f"{job_id!r} is not a job id")
        return self.folder / job_id / RECORD

    def _write(self, jobs: Collection[Job]) -> None:
        """Write records atomically and sync them."""
        texts = {self._record(job.id): format_record(job) for job in jobs}
        for path in texts:
            if path.parent.is_symlink():
                raise JobError(f"{path.parent} is a link; refusing to write through it", hint=f"rm {path.parent}")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_all_atomically(texts)
        sync_folders([path.parent for path in texts])

    def _last_key(self) -> int:
        try:
            return int((self.folder / "last_key").read_text())
        except (FileNotFoundError, ValueError):
            jobs, _ = self.load()
            keys = [read_key(self._record(name)) for name in self._names()]
            return max([*keys, *(job.key for job in jobs)], default=0)

    def _write_last_key(self, key: int) -> None:
        # The folder is synced with the records, which come after it.
        write_all_atomically({self.folder / "last_key": f"{key}\n".encode()})

    def busy(self) -> JobError | None:
        """Return the error that :meth:`locked` would raise if the holder kept the lock; None without a holder."""
        path = self.folder / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            # The file does not exist yet, or locked() reports the error.
            return None
        try:
            lock(descriptor)
        except BlockingIOError:
            return _held_by_another(descriptor, path)
        except OSError:
            return None
        else:
            return None
        finally:
            unlock(descriptor)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writers of this registry."""
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(self.folder.parent)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error
        try:
            _wait_for_lock(descriptor, self.folder / "lock")
            yield
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error
        finally:
            unlock(descriptor)


def _wait_for_lock(descriptor: int, path: Path) -> None:
    """Take the lock of the registry.

    Raises:
        JobError: Another program holds it for too long.
    """
    try:
        lock(descriptor, seconds=LOCK_TIMEOUT)
    except BlockingIOError:
        raise _held_by_another(descriptor, path) from None


def _held_by_another(descriptor: int, path: Path) -> JobError:
    """Return the error that names the holder of a lock."""
    pids = list(map(str, holders(descriptor)))
    who = f" (process {', '.join(pids)})" if pids else ""
    hint = f"ps -fp {','.join(pids)}" if pids else f"fuser -v {path}"
    return JobError(f"Another remote-tool{who} has held {path} for more than {LOCK_TIMEOUT:.0f} s", hint=hint)
