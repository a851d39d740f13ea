"""Local records of work that can be resumed: fan-outs and sweeps, one file each, without values of variables."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from remote_tool.errors import JobError, UsageError
from remote_tool.jobs.records import JOB_ID
from remote_tool.protocol import strict_json
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.system.files import read_bounded, write_atomically
from remote_tool.system.locks import lock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
SCHEMA = 1
LARGEST = 64 * 1024 * 1024
NAME_LENGTH = 6


@dataclass(frozen=True)
class WorkFiles:
    """The records of one kind of work.

    Attributes:
        folder: Their folder.
        noun: What they are, for messages.
        tag: The beginning of the tag of its jobs; the name follows.
    """

    folder: Path
    noun: str
    tag: str

    def write(self, launch_id: str, values: Mapping[str, Any]) -> None:
        """Record work.

        Raises:
            JobError: The disk cannot be written.
        """
        values = {"schema": SCHEMA, "launch_id": launch_id, **values}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.folder / f"{launch_id}.json", json.dumps(values).encode())
        except OSError as error:
            raise JobError(f"Cannot write to {self.folder}: {error.strerror}", hint="df -h .") from error

    @contextmanager
    def locked(self, launch_id: str, doing: str) -> Iterator[None]:
        """Lock work: only one local program hands it out.

        Raises:
            JobError: Another program does.
        """
        path = self.folder / f"{launch_id}.json"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise JobError(f"Cannot read {path}: {error.strerror}") from error
        try:
            lock(descriptor)
            yield
        except BlockingIOError:
            name = self.name_of(launch_id)
            raise JobError(
                f"Another remote-tool is {doing} {self.noun} {name}",
                hint=f"remote-tool job-tail --tag {self.tag}{name}",
            ) from None
        finally:
            unlock(descriptor)

    def name_of(self, launch_id: str) -> str:
        """Return the short name of work, as people give it."""
        return launch_id[-NAME_LENGTH:]

    def names(self) -> Sequence[str]:
        """Return the ids of all work, oldest first."""
        return sorted(path.stem for path in self.folder.glob("*.json") if JOB_ID.fullmatch(path.stem))

    def find(self, word: str, read: Callable[[Mapping[str, Any], str], T]) -> T:
        """Return the only work matching an id, the end of one or a tag.

        Raises:
            UsageError: None matches, or several do.
            JobError: Its record cannot be read.
        """
        end, ids = word.removeprefix(self.tag), self.names()
        found = [each for each in ids if end and each.endswith(end)]
        if not found:
            known = ", ".join(each[-NAME_LENGTH:] for each in ids[-5:])
            raise UsageError(f"No {self.noun} {word!r} was started here" + (f"; the last are {known}" if known else ""))
        if len(found) > 1:
            raise UsageError(f"{word!r} matches {len(found)} {self.noun}s: {', '.join(found[:5])}")
        return self._read(found[0], read)

    def note_done(self, launch_id: str, numbers: Collection[int]) -> None:
        """Record that parts of work are done, so that this is known without the records of their jobs.

        Raises:
            JobError: Its record cannot be read or written, or another program is handing the work out.
        """
        with self.locked(launch_id, "changing"):
            values = self._read(launch_id, lambda read, _: dict(read))
            done = done_of(values)
            if not done.issuperset(numbers):
                self.write(launch_id, {**values, "done": sorted(done | set(numbers))})

    def _read(self, launch_id: str, read: Callable[[Mapping[str, Any], str], T]) -> T:
        path = self.folder / f"{launch_id}.json"
        try:
            values = strict_json.parse(read_bounded(path, LARGEST)[0])
            self._check(values, launch_id)
            return read(values, launch_id)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JobError(f"{path}: not the record of a {self.noun} ({error})", hint=f"rm {path}") from error

    def _check(self, values: Mapping[str, Any], launch_id: str) -> None:
        if values["schema"] != SCHEMA:
            raise ValueError(f"written by a newer version of remote-tool: schema {values['schema']!r}")
        if values["launch_id"] != launch_id:
            raise ValueError(f"of another {self.noun}")


def done_of(values: Mapping[str, Any]) -> frozenset[int]:
    """Return the numbers of the parts that are recorded as done; earlier versions recorded none."""
    found = values.get("done", [])
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise TypeError("done is not a list of numbers")
    return frozenset(found)


def text(values: Mapping[str, Any], name: str) -> str:
    if not isinstance(values[name], str):
        raise TypeError(f"{name} is not text")
    return str(values[name])


def texts(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if not isinstance(values[name], list) or not all(isinstance(each, str) for each in values[name]):
        raise TypeError(f"{name} is not a list of texts")
    return tuple(values[name])


def number(values: Mapping[str, Any], name: str) -> int | None:
    value = values[name]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} is not a number")
    return value


def count(values: Mapping[str, Any], name: str) -> int:
    return number(values, name) or 0


def seconds(values: Mapping[str, Any], name: str) -> float | None:
    value = values[name]
    if value is not None and not is_seconds(value):
        raise TypeError(f"{name} is not a number of seconds")
    return None if value is None else float(value)


def optional_flag(values: Mapping[str, Any], name: str) -> bool | None:
    return None if values[name] is None else flag(values, name)


def flag(values: Mapping[str, Any], name: str) -> bool:
    if not isinstance(values[name], bool):
        raise TypeError(f"{name} is neither true nor false")
    return bool(values[name])
