"""The local record of a sweep, for showing and resuming it: the combinations, without values of variables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.sweep_values import MOST_COMBINATIONS, Random
from remote_tool.errors import UsageError
from remote_tool.launchers.sweep import TAG, SweepRequest
from remote_tool.workflows.work_files import (
    WorkFiles,
    count,
    done_of,
    flag,
    number,
    optional_flag,
    seconds,
    text,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class SweepRecord:
    """A sweep started here.

    Attributes:
        launch_id: Shared by its jobs.
        request: The request, with all its combinations in the order of their numbers, without the variables.
        variables: Names of the variables.
        listed: Processes per server from a host list.
        done: Numbers of the combinations that succeeded, as far as their jobs were removed since.
    """

    launch_id: str
    request: SweepRequest
    variables: tuple[str, ...] = ()
    listed: Mapping[str, int | None] = field(default_factory=dict)
    done: frozenset[int] = frozenset()


def sweep_files(folder: Path) -> WorkFiles:
    return WorkFiles(folder, "sweep", TAG)


def write_sweep(folder: Path, record: SweepRecord) -> None:
    """Record a sweep.

    Raises:
        JobError: The disk cannot be written.
    """
    request, names = record.request, list(record.request.made[0])
    values = {
        "variables": record.variables,
        "listed": dict(record.listed),
        **{name: getattr(request, name) for name in _OF_REQUEST},
        "devices": [str(device) for device in request.devices],
        "random_seed": request.random.seed,
        "parameters": names,
        "combinations": [[each[name] for name in names] for each in request.made],
        "done": sorted(record.done),
    }
    sweep_files(folder).write(record.launch_id, values)


def find_sweep(folder: Path, word: str = "") -> SweepRecord:
    """Return the only sweep matching an id, the end of one or a tag; without a word, the newest.

    Raises:
        UsageError: None matches, or several do.
        JobError: Its record cannot be read.
    """
    files = sweep_files(folder)
    if not word and not files.names():
        raise UsageError(
            "No sweep was started here", hint="remote-tool helper-sweep --cmd 'train.py --lr {lr}' --grid lr=0.1,0.01"
        )
    return files.find(word or files.names()[-1], _read)


def listing(request: SweepRequest) -> SweepRequest:
    """Return a request with its combinations listed one by one, whatever made them."""
    return replace(request, grid={}, random=Random(seed=request.random.seed), combinations=request.made)


def _read(values: Mapping[str, Any], launch_id: str) -> SweepRecord:
    names, rows = texts(values, "parameters"), values["combinations"]
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_COMBINATIONS:
        raise ValueError("no combinations, or too many")
    combinations = [dict(zip(names, texts({"values": row}, "values"), strict=True)) for row in rows]
    request = SweepRequest(
        combinations=combinations,
        random=Random(seed=number(values, "random_seed")),
        **{name: read(values, name) for name, read in _OF_REQUEST.items()},
    )
    listed = values["listed"]
    return SweepRecord(
        launch_id,
        request,
        texts(values, "variables"),
        {name: number(listed, name) for name in listed},
        done_of(values),
    )


# The recorded fields of a request, and how each is read.
_OF_REQUEST: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "command": text,
    "servers": texts,
    "per_server": number,
    "tags": texts,
    "artifacts": texts,
    "workdir": text,
    "nice": number,
    "name": text,
    "devices": texts,
    "gpus": count,
    "priority": count,
    "backfill": flag,
    "max_duration": seconds,
    "stop_if_idle": seconds,
    "frozen": optional_flag,
}
