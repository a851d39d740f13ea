"""Local records of work that can be resumed: fan-outs and sweeps, one file each, without values of variables.

A file has the options of its request under their names. Versions differ in options: a file may lack some, which have
their defaults then, and may have others, which are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from remote_tool.errors import JobError, UsageError
from remote_tool.jobs.job import FAN_OUT_TAG, SWEEP_TAG, JobState, launch_name
from remote_tool.jobs.records import JOB_ID
from remote_tool.protocol import strict_json
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.system.files import read_bounded, write_atomically
from remote_tool.system.locks import lock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.launchers.job_request import JobRequest

T = TypeVar("T")
R = TypeVar("R", bound="JobRequest")
SCHEMA = 1
LARGEST = 64 * 1024 * 1024
# Secrets, options of a single start or a single job, and what a sweep records as a list of its combinations.
_NOT_RECORDED = {
    *("environment", "sync", "overwrite", "code", "rerun_of", "after", "after_any", "on_end"),
    *("grid", "random", "combinations"),
}
# Fan-outs of the first versions had no host list, and began in the project's folder, whatever is configured now.
_OF_EARLIER_VERSIONS: dict[str, Any] = {"listed": {}, "workdir": "", "done": []}


@dataclass(frozen=True)
class WorkRecord(Generic[R]):
    """Work started here.

    Attributes:
        launch_id: Shared by its jobs.
        request: The request, without the variables.
        variables: Names of the variables.
        listed: Processes per server from a host list.
        done: Numbers of the parts that succeeded, as far as their jobs were removed since.
    """

    launch_id: str
    request: R
    variables: tuple[str, ...] = ()
    listed: Mapping[str, int | None] = field(default_factory=dict)
    done: frozenset[int] = frozenset()


@dataclass(frozen=True)
class WorkStanding:
    """How far work has come.

    Attributes:
        succeeded: The job that did a part, by the number of the part, unless its record was removed.
        done: Numbers of all parts that are done.
        running: The jobs that may still run, of parts that are not done.
        missing: Numbers of the parts that are neither done nor running.
    """

    succeeded: Mapping[int, Job]
    done: frozenset[int]
    running: Sequence[Job]
    missing: Sequence[int]

    @classmethod
    def of(cls, parts: int, recorded: frozenset[int], jobs: Iterable[Job]) -> WorkStanding:
        """Return how far work has come by its jobs; the parts in ``recorded`` are done whatever their jobs say."""
        numbers = range(parts)
        own = [(job.node_rank or 0, job) for job in jobs if job.node_rank in numbers]
        succeeded = {number: job for number, job in own if job.state is JobState.SUCCEEDED}
        done = recorded | succeeded.keys()
        # The user has given up a job with a pending stop; another one may do its part.
        running = [(number, job) for number, job in own if job.may_run and not job.stop_signal and number not in done]
        begun = done | {number for number, _ in running}
        missing = [number for number in numbers if number not in begun]
        return cls(succeeded, done, [job for _, job in running], missing)


@dataclass(frozen=True)
class WorkFiles:
    """The records of one kind of work.

    Attributes:
        folder: Their folder.
        noun: The kind, for messages.
        tag: The beginning of the tag of its jobs; the name follows.
    """

    folder: Path
    noun: str
    tag: str

    def write(self, record: WorkRecord[Any], **own: object) -> None:
        """Record work; ``own`` are values that only this kind of work has.

        Raises:
            JobError: The disk cannot be written.
        """
        request = record.request
        values = {
            "variables": record.variables,
            "listed": dict(record.listed),
            "done": sorted(record.done),
            **{name: getattr(request, name) for name in recorded_fields(type(request))},
            "devices": [str(device) for device in request.devices],
        }
        self._write(record.launch_id, {**values, **own})

    @contextmanager
    def locked(self, launch_id: str, doing: str) -> Iterator[None]:
        """Lock work: only one local program hands it out.

        Raises:
            JobError: Another program does.
        """
        path = self.path(launch_id)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise JobError(f"Cannot read {path}: {error.strerror}") from error
        try:
            lock(descriptor)
            yield
        except BlockingIOError:
            name = launch_name(launch_id)
            raise JobError(
                f"Another remote-tool is {doing} {self.noun} {name}",
                hint=f"remote-tool job-tail --tag {self.tag}{name}",
            ) from None
        finally:
            unlock(descriptor)

    def path(self, launch_id: str) -> Path:
        return self.folder / f"{launch_id}.json"

    def names(self) -> Sequence[str]:
        """Return the ids of all work, oldest first."""
        return sorted(path.stem for path in self.folder.glob("*.json") if JOB_ID.fullmatch(path.stem))

    def find(self, word: str, read: Callable[[Mapping[str, Any]], T]) -> T:
        """Return the only work matching an id, the end of one or a tag.

        Raises:
            UsageError: None matches, or several do.
            JobError: Its record cannot be read.
        """
        end, ids = word.removeprefix(self.tag), self.names()
        found = [each for each in ids if end and each.endswith(end)]
        if not found:
            known = ", ".join(map(launch_name, ids[-5:]))
            raise UsageError(f"No {self.noun} {word!r} was started here" + (f"; the last are {known}" if known else ""))
        if len(found) > 1:
            raise UsageError(f"{word!r} matches {len(found)} {self.noun}s: {', '.join(found[:5])}")
        return self._read(found[0], read)

    def is_done(self, launch_id: str, jobs: Iterable[Job]) -> bool:
        """Return whether all parts of work are done, by its jobs or by its record.

        Raises:
            JobError: Its record cannot be read.
        """
        parts, recorded = self._read(launch_id, lambda values: (_count_parts(values), _done(values)))
        return len(WorkStanding.of(parts, recorded, jobs).done) >= parts

    def note_done(self, launch_id: str, numbers: Collection[int]) -> None:
        """Record that parts of work are done, so that this is known without the records of their jobs.

        Raises:
            JobError: Its record cannot be read or written, or another program is handing the work out.
        """
        with self.locked(launch_id, "changing"):
            values = self._read(launch_id, dict)
            done = _done(values)
            if not done.issuperset(numbers):
                self._write(launch_id, {**values, "done": sorted(done | set(numbers))})

    def refuse_missing_variables(self, record: WorkRecord[Any], environment: Mapping[str, str]) -> None:
        """Refuse to resume work without the values of all its variables.

        Raises:
            UsageError: Some are missing; all of them are listed.
        """
        missing = [name for name in record.variables if name not in environment]
        if missing:
            raise UsageError(
                f"Values of variables are never stored: {self.noun} {launch_name(record.launch_id)} needs"
                f" {', '.join(missing)} again",
                hint=" ".join(f"--env {name} VALUE" for name in missing),
            )

    def _write(self, launch_id: str, values: Mapping[str, Any]) -> None:
        values = {"schema": SCHEMA, "launch_id": launch_id, **values}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path(launch_id), json.dumps(values).encode())
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error

    def _read(self, launch_id: str, read: Callable[[Mapping[str, Any]], T]) -> T:
        path = self.path(launch_id)
        try:
            values = strict_json.parse(read_bounded(path, LARGEST)[0])
            self._check(values, launch_id)
            return read({**_OF_EARLIER_VERSIONS, **values})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JobError(f"{path}: not the record of a {self.noun} ({error})", hint=f"rm {path}") from error

    def _check(self, values: Mapping[str, Any], launch_id: str) -> None:
        if values["schema"] != SCHEMA:
            raise ValueError(f"written by a newer version of remote-tool: schema {values['schema']!r}")
        if values["launch_id"] != launch_id:
            raise ValueError(f"of another {self.noun}")


def fan_out_files(folder: Path) -> WorkFiles:
    return WorkFiles(folder, "fan-out", FAN_OUT_TAG)


def sweep_files(folder: Path) -> WorkFiles:
    return WorkFiles(folder, "sweep", SWEEP_TAG)


def recorded_fields(kind: type[JobRequest]) -> dict[str, Any]:
    """Return the fields of a request that its record has, each with its type."""
    # Modules import these for type checkers only.
    names = {"ArtifactPattern": ArtifactPattern, "Mapping": Mapping, "Sequence": Sequence}
    types = get_type_hints(kind, localns=names)
    return {each.name: types[each.name] for each in fields(kind) if each.name not in _NOT_RECORDED}


def read_request(kind: type[R], values: Mapping[str, Any], **own: Any) -> R:  # noqa: ANN401 - fields of the request
    """Return a recorded request; ``own`` are the fields that are recorded in another form."""
    found = {
        name: read_field(values, name, of_type) for name, of_type in recorded_fields(kind).items() if name in values
    }
    return kind(**found, **own)


def read_others(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record besides its request."""
    listed = values["listed"]
    return {
        "launch_id": values["launch_id"],
        "variables": read_field(values, "variables", tuple[str, ...]),
        "listed": {name: read_field(listed, name, int | None) for name in listed},
        "done": _done(values),
    }


def read_field(values: Mapping[str, Any], name: str, of_type: Any) -> Any:  # noqa: ANN401 - any type
    """Return a value, a list as a tuple.

    Raises:
        KeyError: It is missing.
        TypeError: It has not the type, such as ``int | None`` or ``tuple[str, ...]``.
    """
    value = values[name]
    if not _has_type(value, of_type):
        raise TypeError(f"{name} has a wrong type")
    return tuple(value) if isinstance(value, list) else value


def _has_type(value: object, of_type: Any) -> bool:  # noqa: ANN401 - any type
    if get_origin(of_type) in {UnionType, Union}:
        return any(_has_type(value, one) for one in get_args(of_type))
    if get_origin(of_type) is tuple:
        return isinstance(value, list) and all(_has_type(each, get_args(of_type)[0]) for each in value)
    return type(value) is of_type or (type(value) is int and of_type is float)


def _count_parts(values: Mapping[str, Any]) -> int:
    return len(values["combinations"]) if "combinations" in values else int(read_field(values, "shards", int))


def _done(values: Mapping[str, Any]) -> frozenset[int]:
    return frozenset(read_field(values, "done", tuple[int, ...]))
