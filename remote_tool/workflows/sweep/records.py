"""The local record of a sweep, for showing and resuming it: it lists all combinations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import UsageError
from remote_tool.workflows.sweep.request import SweepRequest
from remote_tool.workflows.sweep.values import MOST_COMBINATIONS, Random
from remote_tool.workflows.work.records import WorkRecord, read_field, read_others, read_request, sweep_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Its request has all combinations in the order of their numbers.
SweepRecord = WorkRecord[SweepRequest]


def write_sweep(folder: Path, record: SweepRecord) -> None:
    """Record a sweep.

    Raises:
        JobError: The disk cannot be written.
    """
    request, names = record.request, list(record.request.made[0])
    sweep_files(folder).write(
        record,
        random_seed=request.random.seed,
        parameters=names,
        combinations=[[each[name] for name in names] for each in request.made],
    )


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


def _read(values: Mapping[str, Any]) -> SweepRecord:
    names, rows = read_field(values, "parameters", tuple[str, ...]), values["combinations"]
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_COMBINATIONS:
        raise ValueError("no combinations, or too many")
    combinations = [
        dict(zip(names, read_field({"values": row}, "values", tuple[str, ...]), strict=True)) for row in rows
    ]
    seed = Random(seed=read_field(values, "random_seed", int | None))
    request = read_request(SweepRequest, values, combinations=combinations, random=seed)
    return WorkRecord(request=request, **read_others(values))
