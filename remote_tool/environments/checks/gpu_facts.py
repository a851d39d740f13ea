"""Parse the output of nvidia-smi, which may hang, fail or print anything."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_GPUS = 256
LONGEST_NAME = 80
KILLED = 137
_STATUS = re.compile(r"\nstatus ([0-9]{1,3})\Z")
_CUDA = re.compile(r"CUDA (?:\w{2,3} )?Version *: *([0-9]{1,3}\.[0-9]{1,3})")
_DRIVER = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,5}){1,3}")
_COLUMNS = 5


class NvidiaSmiStatus(StrEnum):
    """The result of nvidia-smi; ``none`` without a GPU, ``silent`` if it did not answer in time."""

    NONE = "none"
    NO_DRIVER = "no driver"
    ANSWERED = "answered"
    FAILED = "failed"
    SILENT = "silent"


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: Its model.
        memory: MiB; None if not reported, as with memory shared with the machine.
        used: MiB.
        load: Percent; None if not reported, as in MIG mode.
    """

    name: str
    memory: int | None
    used: int | None
    load: int | None


@dataclass(frozen=True)
class GpuReport:
    """The facts about a machine's GPUs.

    Attributes:
        state: The result of nvidia-smi.
        message: Its message, if it failed.
        gpus: In numerical order.
        driver: Its version, like ``550.54.15``.
        cuda: The newest CUDA that this driver supports, like ``12.4``; empty if not reported.
        parts: Number of MIG devices.
        processes: Number of GPU processes per user; ``?`` for unknown owners.
    """

    state: NvidiaSmiStatus = NvidiaSmiStatus.NONE
    message: str = ""
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    parts: int = 0
    processes: tuple[tuple[str, int], ...] = ()


def parse_gpus(single: Mapping[str, str], processes: Sequence[str]) -> GpuReport:
    """Parse the records with names that begin with ``gpu``."""
    if "gpus" not in single:
        return _without_answer(single)
    text, status = _split(single["gpus"])
    if status == KILLED:
        return GpuReport(NvidiaSmiStatus.SILENT)
    rows = [_row(line) for line in text.splitlines() if line.strip()][:MOST_GPUS]
    gpus = [row for row in rows if row is not None]
    if status != 0 or not gpus or len(gpus) != len(rows):
        return GpuReport(NvidiaSmiStatus.FAILED, _first_line(text))
    owners = Counter(record.partition(" ")[2].strip()[:LONGEST_NAME] or "?" for record in processes)
    cuda = _CUDA.search(single.get("gpu_summary", ""))
    return GpuReport(
        NvidiaSmiStatus.ANSWERED,
        gpus=tuple(gpu for gpu, _ in gpus),
        driver=gpus[0][1],
        cuda=cuda[1] if cuda else "",
        parts=len(re.findall(r"^\s+MIG ", single.get("gpu_parts", ""), re.MULTILINE)),
        processes=tuple(owners.most_common()),
    )


def _without_answer(single: Mapping[str, str]) -> GpuReport:
    """Distinguish a machine without GPUs from a timeout."""
    if "gpu_end" not in single:
        return GpuReport(NvidiaSmiStatus.SILENT)
    return GpuReport(NvidiaSmiStatus.NO_DRIVER if "gpu_without_driver" in single else NvidiaSmiStatus.NONE)


def _split(record: str) -> tuple[str, int | None]:
    """Return the output and the status; None if the output was cut off before that."""
    found = _STATUS.search(record)
    return (record[: found.start()], int(found[1])) if found else (record, None)


def _row(line: str) -> tuple[Gpu, str] | None:
    """Parse a row of the list into a GPU and its driver; only the first column, its name, may contain commas."""
    name, *numbers = line.rsplit(",", _COLUMNS - 1)
    if len(numbers) != _COLUMNS - 1 or not _DRIVER.fullmatch(numbers[-1].strip()):
        return None
    memory, used, load = (int(word) if re.fullmatch(r"[0-9]{1,9}", word.strip()) else None for word in numbers[:-1])
    return Gpu(name.strip()[:LONGEST_NAME], memory, used, load), numbers[-1].strip()


def _first_line(text: str) -> str:
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "it printed nothing")
