"""The local record of a fan-out, for resuming it: the work, without values of variables."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, UsageError
from remote_tool.jobs.records import JOB_ID
from remote_tool.launchers.fan_out import MOST_SHARDS, TAG, FanOutRequest, fan_out_name
from remote_tool.protocol import strict_json
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.system.files import read_bounded, write_atomically
from remote_tool.system.locks import lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

SCHEMA = 1
LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class FanOutRecord:
    """A fan-out started here.

    Attributes:
        launch_id: Shared by its jobs.
        shards: Their number, even if there are fewer slots now.
        request: The request, without the variables.
        variables: Names of the variables.
        listed: Processes per server from a host list.
    """

    launch_id: str
    shards: int
    request: FanOutRequest
    variables: tuple[str, ...] = ()
    listed: Mapping[str, int | None] = field(default_factory=dict)


def write_record(folder: Path, record: FanOutRecord) -> None:
    """Record a fan-out.

    Raises:
        JobError: The disk cannot be written.
    """
    values = {
        "schema": SCHEMA,
        "launch_id": record.launch_id,
        "shards": record.shards,
        "variables": record.variables,
        "listed": dict(record.listed),
        **{name: getattr(record.request, name) for name in _OF_REQUEST},
        "devices": [str(device) for device in record.request.devices],
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(folder / f"{record.launch_id}.json", json.dumps(values).encode())
    except OSError as error:
        raise JobError(f"Cannot write to {folder}: {error.strerror}", hint="df -h .") from error


@contextmanager
def followed(folder: Path, launch_id: str) -> Iterator[None]:
    """Lock a fan-out: only one local program hands out its shards.

    Raises:
        JobError: Another program does.
    """
    path = folder / f"{launch_id}.json"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise JobError(f"Cannot read {path}: {error.strerror}") from error
    try:
        lock(descriptor)
        yield
    except BlockingIOError:
        name = fan_out_name(launch_id)
        raise JobError(
            f"Another remote-tool is following fan-out {name}", hint=f"remote-tool job-tail --tag {TAG}{name}"
        ) from None
    finally:
        os.close(descriptor)


def find_record(folder: Path, word: str) -> FanOutRecord:
    """Return the only fan-out matching an id, the end of one or a tag.

    Raises:
        UsageError: None matches, or several do.
        JobError: Its record cannot be read.
    """
    end = word.removeprefix(TAG)
    ids = sorted(path.stem for path in folder.glob("*.json") if JOB_ID.fullmatch(path.stem))
    found = [each for each in ids if end and each.endswith(end)]
    if not found:
        known = ", ".join(fan_out_name(each) for each in ids[-5:])
        raise UsageError(f"No fan-out {word!r} was started here" + (f"; the last are {known}" if known else ""))
    if len(found) > 1:
        raise UsageError(f"{word!r} matches {len(found)} fan-outs: {', '.join(found[:5])}")
    path = folder / f"{found[0]}.json"
    try:
        return _read(strict_json.parse(read_bounded(path, LARGEST)[0]), found[0])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{path}: not the record of a fan-out ({error})", hint=f"rm {path}") from error


def _read(values: Any, launch_id: str) -> FanOutRecord:  # noqa: ANN401 - whatever the file has
    if values["schema"] != SCHEMA:
        raise ValueError(f"written by a newer version of remote-tool: schema {values['schema']!r}")
    if values["launch_id"] != launch_id:
        raise ValueError("of another fan-out")
    values = {**_OF_EARLIER_VERSIONS, **values}
    request = FanOutRequest(**{name: read(values, name) for name, read in _OF_REQUEST.items()})
    shards = _number(values, "shards") or 0
    if not 1 <= shards <= MOST_SHARDS:
        raise ValueError(f"{shards} shards")
    listed = values["listed"]
    return FanOutRecord(
        launch_id, shards, request, _texts(values, "variables"), {name: _number(listed, name) for name in listed}
    )


def _text(values: Mapping[str, Any], name: str) -> str:
    if not isinstance(values[name], str):
        raise TypeError(f"{name} is not text")
    return str(values[name])


def _texts(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if not isinstance(values[name], list) or not all(isinstance(each, str) for each in values[name]):
        raise TypeError(f"{name} is not a list of texts")
    return tuple(values[name])


def _number(values: Mapping[str, Any], name: str) -> int | None:
    value = values[name]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} is not a number")
    return value


def _count(values: Mapping[str, Any], name: str) -> int:
    return _number(values, name) or 0


def _seconds(values: Mapping[str, Any], name: str) -> float | None:
    value = values[name]
    if value is not None and not is_seconds(value):
        raise TypeError(f"{name} is not a number of seconds")
    return None if value is None else float(value)


# The recorded fields of a request, and how each is read.
_OF_REQUEST: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "command": _text,
    "servers": _texts,
    "total": _number,
    "items": _texts,
    "per_server": _number,
    "tags": _texts,
    "retries": _count,
    "artifacts": _texts,
    "gather": _text,
    "workdir": _text,
    "nice": _number,
    "max_duration": _seconds,
    "stop_if_idle": _seconds,
    "name": _text,
    "devices": _texts,
    "gpus": _count,
}
# They began in the project's folder.
_OF_EARLIER_VERSIONS: dict[str, Any] = {
    "workdir": "",
    "nice": None,
    "max_duration": None,
    "stop_if_idle": None,
    "name": "",
    "gpus": 0,
    "listed": {},
}
