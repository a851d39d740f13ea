"""The local record of a fan-out, for resuming it: the work, without values of variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.launchers.fan_out import MOST_SHARDS, TAG, FanOutRequest
from remote_tool.workflows.work_files import WorkFiles, count, done_of, number, optional_flag, seconds, text, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


@dataclass(frozen=True)
class FanOutRecord:
    """A fan-out started here.

    Attributes:
        launch_id: Shared by its jobs.
        shards: Their number, even if there are fewer slots now.
        request: The request, without the variables.
        variables: Names of the variables.
        listed: Processes per server from a host list.
        done: Numbers of the shards that succeeded, as far as their jobs were removed since.
    """

    launch_id: str
    shards: int
    request: FanOutRequest
    variables: tuple[str, ...] = ()
    listed: Mapping[str, int | None] = field(default_factory=dict)
    done: frozenset[int] = frozenset()


def fan_out_files(folder: Path) -> WorkFiles:
    return WorkFiles(folder, "fan-out", TAG)


def write_record(folder: Path, record: FanOutRecord) -> None:
    """Record a fan-out.

    Raises:
        JobError: The disk cannot be written.
    """
    values = {
        "shards": record.shards,
        "variables": record.variables,
        "listed": dict(record.listed),
        **{name: getattr(record.request, name) for name in _OF_REQUEST},
        "devices": [str(device) for device in record.request.devices],
    }
    fan_out_files(folder).write(record.launch_id, values)


def followed(folder: Path, launch_id: str) -> AbstractContextManager[None]:
    """Lock a fan-out: only one local program hands out its shards.

    Raises:
        JobError: Another program does.
    """
    return fan_out_files(folder).locked(launch_id, "following")


def find_record(folder: Path, word: str) -> FanOutRecord:
    """Return the only fan-out matching an id, the end of one or a tag.

    Raises:
        UsageError: None matches, or several do.
        JobError: Its record cannot be read.
    """
    return fan_out_files(folder).find(word, _read)


def _read(values: Mapping[str, Any], launch_id: str) -> FanOutRecord:
    values = {**_OF_EARLIER_VERSIONS, **values}
    request = FanOutRequest(**{name: read(values, name) for name, read in _OF_REQUEST.items()})
    shards = number(values, "shards") or 0
    if not 1 <= shards <= MOST_SHARDS:
        raise ValueError(f"{shards} shards")
    listed = values["listed"]
    return FanOutRecord(
        launch_id,
        shards,
        request,
        texts(values, "variables"),
        {name: number(listed, name) for name in listed},
        done_of(values),
    )


# The recorded fields of a request, and how each is read.
_OF_REQUEST: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "command": text,
    "servers": texts,
    "total": number,
    "items": texts,
    "per_server": number,
    "tags": texts,
    "retries": count,
    "artifacts": texts,
    "gather": text,
    "workdir": text,
    "nice": number,
    "max_duration": seconds,
    "stop_if_idle": seconds,
    "name": text,
    "devices": texts,
    "gpus": count,
    "frozen": optional_flag,
}
# They began in the project's folder.
_OF_EARLIER_VERSIONS: dict[str, Any] = {
    "workdir": "",
    "nice": None,
    "max_duration": None,
    "stop_if_idle": None,
    "name": "",
    "gpus": 0,
    "frozen": None,
    "listed": {},
}
