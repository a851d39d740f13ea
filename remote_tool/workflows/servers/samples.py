"""Samples of servers for ``top``, and the leases and processes that ``gpus`` reads too; answers are not trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_tool.readable import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_GPUS = 256
MOST_PROCESSES = 256
MOST_JOBS, MOST_RANKS = 256, 1024
LONGEST_TEXT = 200


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU.

    Attributes:
        pid: The process id that nvidia-smi reports.
        memory: Bytes of the GPU's memory; None if not reported.
        user: The account; empty if the process is in another container.
        job: The id of its job; empty without one.
    """

    pid: int
    memory: int | None
    user: str
    job: str


@dataclass(frozen=True)
class GpuLease:
    """A lease of GPUs.

    Attributes:
        user: The account on the server.
        job: The id of the job.
        name: The job's name; empty without one.
        since: Seconds since the epoch.
    """

    user: str
    job: str
    name: str
    since: float | None


@dataclass(frozen=True)
class GpuSample:
    """One GPU; a value that is not reported is None.

    Attributes:
        index: The number in nvidia-smi.
        name: The model.
        load: Percent.
        memory_used: Bytes in use.
        memory_total: Bytes.
        temperature: Degrees Celsius.
        power: Watts.
        power_limit: Watts.
        processes: The processes that use it.
        lease: The lease; None without one.
    """

    index: int
    name: str
    load: float | None
    memory_used: int | None
    memory_total: int | None
    temperature: float | None
    power: float | None
    power_limit: float | None
    processes: tuple[GpuProcess, ...] = ()
    lease: GpuLease | None = None


@dataclass(frozen=True)
class JobRanks:
    """The ranks of a running job on one server.

    Attributes:
        job: Its id.
        alive: Global ranks with a living process.
        ended: Global ranks whose process has ended, with success or not.
        problem: The error of the first rank that failed, if torchrun or torch has recorded it; else empty.
    """

    job: str
    alive: tuple[int, ...]
    ended: tuple[int, ...]
    problem: str


@dataclass(frozen=True)
class Sample:
    """The use of a server; a value that is unknown is None, and sizes are in bytes.

    Attributes:
        cpu: Percent of all processors.
        cores: The number of processors.
        load: The load average of the last minute.
        memory_total: The memory of the machine.
        memory_available: The memory that new programs can use.
        disk_total: The size of the disk with the project's folder.
        disk_free: The free space of that disk, for this user.
        disk_kind: The file system of that disk, like ``ext4``; empty if unknown.
        gpus: The GPUs, by number.
        gpu_problem: The error of nvidia-smi; empty if it answered, or there is no GPU.
        disk_problem: The reason why the disk is unknown now, or empty.
        ranks: The ranks of each running job that has some.
    """

    cpu: float | None
    cores: int | None
    load: float | None
    memory_total: int | None
    memory_available: int | None
    disk_total: int | None
    disk_free: int | None
    gpus: tuple[GpuSample, ...] = ()
    gpu_problem: str = ""
    disk_problem: str = ""
    disk_kind: str = ""
    ranks: tuple[JobRanks, ...] = ()

    @property
    def gpu_load(self) -> float | None:
        """The mean load of the GPUs in percent; None if unknown."""
        loads = [gpu.load for gpu in self.gpus if gpu.load is not None]
        return sum(loads) / len(loads) if loads else None

    @property
    def memory_used(self) -> int | None:
        """Bytes of memory in use."""
        if self.memory_total is None or self.memory_available is None:
            return None
        return max(0, self.memory_total - self.memory_available)


def parse_sample(header: Mapping[str, Any]) -> Sample:
    """Return the sample in an answer."""
    machine = header.get("machine")
    fields: Mapping[str, Any] = machine if isinstance(machine, dict) else {}
    return Sample(
        cpu=number_of(fields.get("cpu")),
        cores=size_of(fields.get("cores")),
        load=number_of(fields.get("load")),
        memory_total=size_of(fields.get("memory_total")),
        memory_available=size_of(fields.get("memory_available")),
        disk_total=size_of(fields.get("disk_total")),
        disk_free=size_of(fields.get("disk_free")),
        gpus=tuple(sorted(map(_gpu, entries_of(header.get("gpus"), MOST_GPUS)), key=lambda gpu: gpu.index)),
        gpu_problem=text_of(header.get("gpu_problem")),
        disk_problem=text_of(header.get("disk_problem")),
        disk_kind=text_of(fields.get("disk_kind")),
        ranks=tuple(map(_ranks, entries_of(header.get("ranks"), MOST_JOBS))),
    )


def _gpu(entry: Mapping[str, Any]) -> GpuSample:
    return GpuSample(
        index=round(number_of(entry.get("index")) or 0),
        name=text_of(entry.get("name")),
        load=number_of(entry.get("load")),
        memory_used=size_of(entry.get("used"), MEBIBYTE),
        memory_total=size_of(entry.get("memory"), MEBIBYTE),
        temperature=number_of(entry.get("temperature")),
        power=number_of(entry.get("power")),
        power_limit=number_of(entry.get("power_limit")),
        processes=tuple(map(parse_gpu_process, entries_of(entry.get("processes"), MOST_PROCESSES))),
        lease=parse_lease(entry.get("lease")),
    )


def parse_gpu_process(entry: Mapping[str, Any]) -> GpuProcess:
    return GpuProcess(
        pid=round(number_of(entry.get("pid")) or 0),
        memory=size_of(entry.get("used"), MEBIBYTE),
        user=text_of(entry.get("user")),
        job=text_of(entry.get("job")),
    )


def parse_lease(entry: object) -> GpuLease | None:
    if not isinstance(entry, dict):
        return None
    user, job, name = (text_of(entry.get(key)) for key in ("user", "job", "name"))
    return GpuLease(user, job, name, number_of(entry.get("since")))


def _ranks(entry: Mapping[str, Any]) -> JobRanks:
    alive, ended = _counts(entry.get("alive")), _counts(entry.get("ended"))
    return JobRanks(text_of(entry.get("job")), alive, ended, text_of(entry.get("problem")))


def _counts(value: object) -> tuple[int, ...]:
    sizes = map(size_of, value[:MOST_RANKS] if isinstance(value, list) else ())
    return tuple(size for size in sizes if size is not None)


def entries_of(value: object, most: int) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in (value[:most] if isinstance(value, list) else ()) if isinstance(entry, dict))


def number_of(value: object) -> float | None:
    """Return a number that is not negative."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def size_of(value: object, unit: int = 1) -> int | None:
    number = number_of(value)
    return None if number is None else round(number * unit)


def text_of(value: object) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""
