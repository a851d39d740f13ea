"""The jobs that this checkout knows: one folder each, with a readable record and the logs that came home."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.job import Job, JobSpec, JobState
from remote_tool.jobs.records import JOB_ID, merge
from remote_tool.supervisor import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

RECORD = "job.yaml"
SCHEMA = 1
LOCK_TIMEOUT = 20.0
# A command may have 4 MiB, and each character of it six in JSON.
LARGEST_RECORD = 32 * 1024 * 1024
# Of a pid, a rank, seconds since the epoch.
LARGEST_NUMBER = 2**34
_FIELDS = {each.name for each in fields(Job)}


class Registry:
    """The records under ``.remote/jobs``.

    A record is YAML of one ``name: value`` per line, each value JSON (which YAML includes): people and YAML readers
    can read it, and ten thousand of them load in a moment. It is written beside and renamed. Writers hold a lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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
                created_at=now,
            )
            for spec in specs
        ]
        return self.adopt(jobs)

    def adopt(self, jobs: Iterable[Job]) -> list[Job]:
        """Record jobs that are new here, and give them keys; those already here stay as they are."""
        with self._locked():
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
        with self._locked():
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
                merged.append(new)
        return merged

    def load(self) -> tuple[list[Job], list[str]]:
        """Return all jobs by key, and a sentence for each record that cannot be read."""
        jobs, bad = [], []
        for name in self._names():
            path = self._record(name)
            try:
                jobs.append(read_record(path))
            except FileNotFoundError:
                continue
            except JobError as error:
                bad.append(error.message)
        return sorted(jobs, key=lambda job: job.key), bad

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.folder) if JOB_ID.fullmatch(entry.name)]
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
        _write_whole(path, format_record(job))

    def _last_key(self) -> int:
        try:
            return int((self.folder / "last_key").read_text())
        except (FileNotFoundError, ValueError):
            jobs, _ = self.load()
            return max((job.key for job in jobs), default=0)

    def _write_last_key(self, key: int) -> None:
        _write_whole(self.folder / "last_key", f"{key}\n".encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
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
    try:
        values = _pairs(_read_whole(path))
        schema = values.pop("schema")
        if schema != SCHEMA:
            raise JobError(f"{path}: written by a newer version of remote-tool (schema {schema!r})")
        values = {name: value for name, value in values.items() if name in _FIELDS}
        values["state"] = JobState(values["state"])
        values["tags"] = tuple(values["tags"])
        job = Job(**values) if values["id"] == path.parent.name and _well_typed(values) else None
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise JobError(f"{path}: not a job record ({error})", hint=f"rm -r {path.parent}") from error
    if job is None:
        raise JobError(f"{path}: not the record of this job", hint=f"rm -r {path.parent}")
    return job


def _well_typed(values: dict[str, Any]) -> bool:
    texts = ("id", "server", "command", "launch_id", "reason", "stop_signal")
    counts = ("node_rank", "rank_offset", "exit_code", "pid", "lost_node")
    moments = ("created_at", "started_at", "ended_at", "seen_at", "stop_grace")
    return (
        _is_count(values["key"])
        and all(values.get(name) is None or _is_count(values[name]) for name in counts)
        and isinstance(values.get("signal") or "", str)
        and all(isinstance(values.get(name, False), bool) for name in ("logs_complete", "stopped_with_launch"))
        and all(isinstance(values.get(name, ""), str) for name in texts)
        and all(isinstance(tag, str) for tag in values["tags"])
        and all(_is_moment(values.get(name) or 0.0) for name in moments)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_NUMBER


def _is_moment(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST_NUMBER


def _pairs(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in text.decode().splitlines():
        name, separator, value = line.partition(": ")
        if not separator or name in found:
            raise ValueError(f"{line[:40]!r} is no new name with a value")
        found[name] = strict_json.parse(value.encode())
    return found


def _read_whole(path: Path) -> bytes:
    """Read a plain file; no link is followed, and a pipe in its place does not hold us."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a plain file")
        text = file.read(LARGEST_RECORD + 1)
    if len(text) > LARGEST_RECORD:
        raise ValueError(f"larger than {LARGEST_RECORD} bytes")
    return text


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


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
