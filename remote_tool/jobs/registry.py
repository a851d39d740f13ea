"""The jobs that this checkout knows: one folder each, with a readable record and the logs that came home."""

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
    key_left_in,
    read_record,
    read_stamped,
)
from remote_tool.jobs.records import JOB_ID, merge
from remote_tool.jobs.registry_lock import LOCK_TIMEOUT, held_by_another, wait_for_lock
from remote_tool.protocol import job_folder, removing
from remote_tool.protocol.job_fields import JOB_FIELDS
from remote_tool.system.files import sync_folder, sync_folders, write_all_atomically
from remote_tool.system.locks import lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_OF_SPEC = frozenset(field.name for field in fields(JobSpec)) & {field.name for field in JOB_FIELDS}


class Registry:
    """The records under ``.remote/jobs``.

    A record is YAML of one ``name: value`` per line, each value JSON (which YAML includes): people and YAML readers
    can read it. It is written beside and renamed. Writers hold a lock. Finished jobs have a line in an index too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = Index(folder)
        self._ended: dict[str, str] = {}

    @property
    def ended(self) -> Mapping[str, str]:
        """The servers of the jobs, by id, whose ends are known and never change; empty where it has gone there."""
        return self._ended

    def create(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Record jobs that are about to be started, and give them keys."""
        now = time.time()
        return self.adopt(
            Job(key=0, state=JobState.STARTING, created_at=now, **{name: getattr(spec, name) for name in _OF_SPEC})
            for spec in specs
        )

    def adopt(self, jobs: Iterable[Job]) -> list[Job]:
        """Record jobs that are new here, and give them keys; those already here stay as they are.

        A damaged record gives way to what is known of its job now, and keeps its key where that can still be read.

        Raises:
            JobError: A record cannot be read now, or is of a newer version; it stays as it is.
        """
        with self.locked():
            last = key = self._last_key()
            recorded, new, mended = [], [], []
            for job in jobs:
                path = self._record(job.id)
                try:
                    recorded.append(read_record(path))
                except FileNotFoundError:
                    key += 1
                    new.append(replace(job, key=key))
                except DamagedRecordError:
                    if not path.is_file():
                        raise
                    left = key_left_in(path)
                    key += left == 0
                    mended.append(replace(job, key=left or key))
            if key != last:
                # Before the records: whoever is killed in between leaves a gap, never two jobs with one key.
                self._write_last_key(key)
            self._write_all(new)
            self._write(mended)
        return [*recorded, *new, *mended]

    def _write_all(self, new: Sequence[Job]) -> None:
        """Write records that were not there: all, or none when there is no room for them."""
        try:
            self._write(new)
            sync_folder(self.folder)
        except OSError:
            for job in new:
                with suppress(OSError):
                    self._record(job.id).unlink()
            raise

    def update(self, jobs: Iterable[Job]) -> list[Job]:
        """Record what servers said of jobs; an end that is known is never changed again."""
        return self.revise((seen.id, partial(merge, seen=seen)) for seen in jobs)

    def revise(self, changes: Iterable[tuple[str, Callable[[Job], Job]]]) -> list[Job]:
        """Change records as they are now: another program may have changed them since they were read."""
        with self.locked():
            revised: list[Job] = []
            changed: dict[str, Job] = {}
            for job_id, change in changes:
                try:
                    known = changed.get(job_id) or read_record(self._record(job_id))
                except (JobError, FileNotFoundError):
                    # Its record is damaged or was removed meanwhile; load names it, the others go on.
                    continue
                new = change(known)
                if new != known:
                    changed[job_id] = new
                revised.append(new)
            self._write(changed.values())
            for job in revised:
                self._note_end(job)
        return revised

    def forget(self, ids: Iterable[str], seconds: float = LOCK_TIMEOUT) -> None:
        """Remove the records and logs of jobs: each at once, though it takes its time until the disk has it back.

        Their keys are not given again. What this has no time for, the next call removes.
        """
        with self.locked():
            # Without this file the keys are counted from the records.
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
        """Return all jobs by key, and a sentence for each record that cannot be read."""
        names = self._names()
        lines = self._index.lines(names)
        jobs, bad = self._read(name for name in names if name not in lines)
        try:
            jobs += [as_job(values) for values in values_of(lines)]
        except (ValueError, KeyError, TypeError):
            # Somebody has made the index up.
            jobs, bad = self._read(names)
        for job in jobs:
            self._note_end(job)
        self._index.keep(names)
        return sorted(jobs, key=lambda job: job.key), bad

    def load_unfinished(self) -> tuple[list[Job], list[str]]:
        """As :meth:`load`, without the jobs whose ends are known; :attr:`ended` has those.

        Lost jobs are among them, as a later look may find them. Reading a record of one takes about 0.1 ms.
        """
        everything = self._names()
        for name in self._ended.keys() - set(everything):
            del self._ended[name]
        names = [name for name in everything if name not in self._ended]
        lines = self._index.lines(names)
        self._ended.update((name, line.server) for name, line in lines.items())
        jobs, bad = self._read(name for name in names if name not in lines)
        for job in jobs:
            self._note_end(job)
        self._index.keep(everything)
        return sorted((job for job in jobs if not job.state.is_final), key=lambda job: job.key), bad

    def load_newest(self, count: int) -> list[Job]:
        """Return the jobs that were made last, by key, as far as their records can be read."""
        return sorted(self._read(sorted(self._names())[-count:])[0], key=lambda job: job.key)

    def find(self, ids: Collection[str]) -> dict[str, Job]:
        """Return these jobs by id, as far as there are records that can be read."""
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
        """Write records, each whole or not at all, and see them on the disk."""
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
            left = [key_left_in(self._record(name)) for name in self._names()]
            return max([*left, *(job.key for job in jobs)], default=0)

    def _write_last_key(self, key: int) -> None:
        # The folder is synced with the records, which come after it.
        write_all_atomically({self.folder / "last_key": f"{key}\n".encode()})

    def busy(self) -> JobError | None:
        """Return what :meth:`locked` would end with if whoever writes here now went on for long; None: nobody does."""
        path = self.folder / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            # There is none yet, or locked tells what is wrong.
            return None
        try:
            lock(descriptor)
        except BlockingIOError:
            return held_by_another(descriptor, path)
        except OSError:
            return None
        else:
            return None
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other program of ours write here meanwhile."""
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(self.folder.parent)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error
        try:
            wait_for_lock(descriptor, self.folder / "lock")
            yield
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error
        finally:
            os.close(descriptor)
