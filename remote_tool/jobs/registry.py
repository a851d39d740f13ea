"""The jobs that this checkout knows: one folder each, with a readable record and the logs that came home."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.index import FIELDS, RECORD, Index, values_of
from remote_tool.jobs.job import Job, JobSpec, JobState
from remote_tool.jobs.records import JOB_ID, merge
from remote_tool.jobs.whole_files import read_whole, write_whole
from remote_tool.supervisor import strict_json
from remote_tool.supervisor.artifact_patterns import read_patterns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

SCHEMA = 1
LOCK_TIMEOUT = 20.0
# A command may have 4 MiB, and each character of it six in JSON.
LARGEST_RECORD = 32 * 1024 * 1024
_FLAGS = ("logs_complete", "stopped_with_launch", "artifacts_complete")
# Of a pid, a rank, seconds since the epoch.
LARGEST_NUMBER = 2**34


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
        """The servers of the jobs, by id, that were seen to have ended: they never change again."""
        return self._ended

    def create(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Record jobs that are about to be started, and give them keys."""
        now = time.time()
        jobs = [
            Job(
                key=0,
                id=spec.id,
                server=spec.server,
                command=spec.command,
                state=JobState.STARTING,
                tags=spec.tags,
                launch_id=spec.launch_id,
                node_rank=spec.node_rank,
                rank_offset=spec.rank_offset,
                artifacts=spec.artifacts,
                created_at=now,
            )
            for spec in specs
        ]
        return self.adopt(jobs)

    def adopt(self, jobs: Iterable[Job]) -> list[Job]:
        """Record jobs that are new here, and give them keys; those already here stay as they are."""
        with self.locked():
            last = key = self._last_key()
            recorded, new = [], []
            for job in jobs:
                path = self._record(job.id)
                if path.exists():
                    recorded.append(read_record(path))
                    continue
                key += 1
                recorded.append(replace(job, key=key))
                new.append(recorded[-1])
            if key != last:
                # Before the records: whoever is killed in between leaves a gap, never two jobs with one key.
                self._write_last_key(key)
            self._write_all(new)
        return recorded

    def _write_all(self, new: Sequence[Job]) -> None:
        """Write records that were not there: all, or none when there is no room for them."""
        try:
            for job in new:
                self._write(job)
        except OSError:
            for job in new:
                with suppress(OSError):
                    self._record(job.id).unlink()
            raise

    def update(self, jobs: Iterable[Job]) -> list[Job]:
        """Record what was seen of jobs; a finished job is never changed again."""
        with self.locked():
            merged = []
            for seen in jobs:
                try:
                    known = read_record(self._record(seen.id))
                except (JobError, FileNotFoundError):
                    # Its record is damaged or was removed meanwhile; load names it, the others go on.
                    continue
                new = merge(known, seen)
                if new != known:
                    self._write(new)
                self._note_end(new)
                merged.append(new)
        return merged

    def load(self) -> tuple[list[Job], list[str]]:
        """Return all jobs by key, and a sentence for each record that cannot be read."""
        names = self._names()
        lines = self._index.lines(names)
        jobs, bad = self._read(name for name in names if name not in lines)
        try:
            jobs += [_as_job(values) for values in values_of(lines)]
        except (ValueError, KeyError, TypeError):
            # Somebody has made the index up.
            jobs, bad = self._read(names)
        for job in jobs:
            self._note_end(job)
        self._index.keep(names)
        return sorted(jobs, key=lambda job: job.key), bad

    def load_unfinished(self) -> tuple[list[Job], list[str]]:
        """As :meth:`load`, without the jobs that have ended; :attr:`ended` has those."""
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
        return sorted((job for job in jobs if not job.state.is_finished), key=lambda job: job.key), bad

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
                job, state = _read_record(f"{self.folder}/{name}/{RECORD}", name)
            except FileNotFoundError:
                continue
            except JobError as error:
                bad.append(error.message)
                continue
            jobs.append(job)
            if job.state.is_finished:
                self._index.add(job, state)
        return jobs, bad

    def _note_end(self, job: Job) -> None:
        if job.state.is_finished:
            self._ended[job.id] = job.server

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.folder) if JOB_ID.fullmatch(name)]  # noqa: PTH208 - no stat each
        except FileNotFoundError:
            return []

    def _record(self, job_id: str) -> Path:
        if not JOB_ID.fullmatch(job_id):
            raise JobError(f"{job_id!r} is not a job id")
        return self.folder / job_id / RECORD

    def _write(self, job: Job) -> None:
        path = self._record(job.id)
        if path.parent.is_symlink():
            raise JobError(f"{path.parent} is a link; refusing to write through it", hint=f"rm {path.parent}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, format_record(job))

    def _last_key(self) -> int:
        try:
            return int((self.folder / "last_key").read_text())
        except (FileNotFoundError, ValueError):
            jobs, _ = self.load()
            return max((job.key for job in jobs), default=0)

    def _write_last_key(self, key: int) -> None:
        write_whole(self.folder / "last_key", f"{key}\n".encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other program of ours write here meanwhile."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error
        try:
            _lock(descriptor, self.folder)
            yield
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error
        finally:
            os.close(descriptor)


def format_record(job: Job) -> bytes:
    """A job as the text of its record."""
    values: dict[str, Any] = {"schema": SCHEMA, **asdict(job)}
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items()).encode()


def read_record(path: Path) -> Job:
    """Read a record.

    Raises:
        JobError: It is not a record, or of a newer version; the message names the file.
        FileNotFoundError: There is none.
    """
    return _read_record(str(path), path.parent.name)[0]


def _read_record(path: str, job_id: str) -> tuple[Job, os.stat_result]:
    """Read the record of a job, and tell which file that was."""
    folder = os.path.dirname(path)  # noqa: PTH120 - ten thousand of them
    try:
        text, state = read_whole(path, LARGEST_RECORD)
        values = _pairs(text)
        schema = values.pop("schema")
        if schema != SCHEMA:
            raise JobError(f"{path}: written by a newer version of remote-tool (schema {schema!r})")
        job = _as_job({name: values[name] for name in FIELDS if name in values})
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise JobError(f"{path}: not a job record ({error})", hint=f"rm -r {folder}") from error
    if job.id != job_id:
        raise JobError(f"{path}: not the record of this job", hint=f"rm -r {folder}")
    return job, state


def _as_job(values: dict[str, Any]) -> Job:
    if not _well_typed(values):
        raise ValueError("a value is of the wrong type")
    values["state"] = JobState(values["state"])
    values["tags"] = tuple(values["tags"])
    values["artifacts"] = read_patterns(values.get("artifacts", ()))
    return Job(**values)


def _well_typed(values: dict[str, Any]) -> bool:
    texts = ("id", "server", "command", "launch_id", "reason", "stop_signal")
    counts = ("node_rank", "rank_offset", "exit_code", "pid", "lost_node")
    moments = ("created_at", "started_at", "ended_at", "seen_at", "stop_grace")
    return (
        _is_count(values["key"])
        and all(values.get(name) is None or _is_count(values[name]) for name in counts)
        and isinstance(values.get("signal") or "", str)
        and all(isinstance(values.get(name, False), bool) for name in _FLAGS)
        and all(isinstance(values.get(name, ""), str) for name in texts)
        and all(isinstance(tag, str) for tag in values["tags"])
        and all(_is_moment(values.get(name) or 0.0) for name in moments)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_NUMBER


def _is_moment(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST_NUMBER


def _pairs(text: bytes) -> dict[str, Any]:
    """Read ``name: value`` lines; all values at once, which is much faster than one by one."""
    lines = [line.partition(b": ") for line in text.splitlines()]
    names = [name.decode() for name, _, _ in lines]
    values = strict_json.parse(b"[%s]" % b",".join(value for _, _, value in lines))
    if len(values) != len(names) or len(set(names)) != len(names):
        raise ValueError("not one name and value a line")
    return dict(zip(names, values, strict=True))


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _held_by_another(descriptor, folder / "lock") from None
            time.sleep(0.01)
        else:
            return


def _held_by_another(descriptor: int, lock: Path) -> JobError:
    holders = _holders(descriptor)
    who = f" (process {', '.join(map(str, holders))})" if holders else ""
    hint = f"ps -fp {','.join(map(str, holders))}" if holders else f"fuser -v {lock}"
    return JobError(f"Another remote-tool{who} holds {lock} for more than {LOCK_TIMEOUT:.0f} s", hint=hint)


def _holders(descriptor: int) -> list[int]:
    """Return the processes that hold a lock on an open file, where the kernel tells."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - Path is for annotations here
            locks = [line.split() for line in file]
    except OSError:
        return []
    # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
    pids = [fields[4] for fields in locks if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode]
    return [int(pid) for pid in pids if _has_open(pid, descriptor)]


def _has_open(pid: str, descriptor: int) -> bool:
    """Whether a process has the same file open: another file system may have the same number for another file."""
    wanted = os.fstat(descriptor)
    with suppress(OSError):
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - Path is for annotations here
        return any(_is_same(f"/proc/{pid}/fd/{name}", wanted) for name in names)
    return False


def _is_same(path: str, wanted: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.stat(path), wanted)  # noqa: PTH116 - the same
    return False
