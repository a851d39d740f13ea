"""The local record of a fan-out, for resuming it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_tool.workflows.fan_out.request import MOST_SHARDS, FanOutRequest
from remote_tool.workflows.work.records import WorkRecord, fan_out_files, read_field, read_others, read_request

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class FanOutRecord(WorkRecord[FanOutRequest]):
    """A fan-out started here.

    Attributes:
        shards: Their number, even if there are fewer slots now.
    """

    shards: int


def write_record(folder: Path, record: FanOutRecord) -> None:
    """Record a fan-out.

    Raises:
        JobError: The disk cannot be written.
    """
    fan_out_files(folder).write(record, shards=record.shards)


def find_record(folder: Path, word: str) -> FanOutRecord:
    """Return the only fan-out matching an id, the end of one or a tag.

    Raises:
        UsageError: None matches, or several do.
        JobError: Its record cannot be read.
    """
    return fan_out_files(folder).find(word, _read)


def _read(values: Mapping[str, Any]) -> FanOutRecord:
    shards = read_field(values, "shards", int)
    if not 1 <= shards <= MOST_SHARDS:
        raise ValueError(f"{shards} shards")
    return FanOutRecord(request=read_request(FanOutRequest, values), shards=shards, **read_others(values))
