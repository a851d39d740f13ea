"""The rows of ``top``: servers and GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.output.sanitize import one_line
from remote_tool.readable import readable_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.servers.samples import GpuSample, Sample

UNKNOWN = "?"
# Characters of the id of a job without a name.
SHOWN_ID = 8


def server_rows(
    names: Iterable[str], samples: Mapping[str, Sample], errors: Mapping[str, RemoteToolError]
) -> list[dict[str, str]]:
    """Return one row per server."""
    return [
        server_row(name, samples[name]) if name in samples else missed_row(name, errors.get(name)) for name in names
    ]


def server_row(name: str, sample: Sample) -> dict[str, str]:
    """Return the row of a server that has answered."""
    gpus = sample.gpus
    is_known = not sample.gpu_problem
    powers = [gpu.power for gpu in gpus if gpu.power is not None]
    temperatures = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    return {
        "SERVER": one_line(name),
        "GPUS": str(len(gpus)) if is_known else UNKNOWN,
        "USE": percent(sample.gpu_load),
        "RESERVED": str(sum(gpu.lease is not None for gpu in gpus) or ""),
        "GPU MEM": _pair(_total(gpu.memory_used for gpu in gpus), _total(gpu.memory_total for gpu in gpus)),
        "TEMP": f"{max(temperatures):.0f} C" if temperatures else "",
        "POWER": _watts(sum(powers)) if powers else "",
        "CPU": percent(sample.cpu),
        "MEMORY": _pair(sample.memory_used, sample.memory_total),
        "DISK FREE": _disk_free(sample),
        "PROBLEM": one_line("; ".join(filter(None, (sample.gpu_problem, sample.disk_problem)))),
    }


def missed_row(name: str, error: RemoteToolError | None) -> dict[str, str]:
    """Return the row of a server that did not answer, with its problem; the other cells are unknown."""
    columns = ("GPUS", "USE", "RESERVED", "GPU MEM", "TEMP", "POWER", "CPU", "MEMORY", "DISK FREE")
    problem = "waiting" if error is None else error.message.removeprefix(f"{name}: ")
    return {"SERVER": one_line(name), **dict.fromkeys(columns, UNKNOWN), "PROBLEM": one_line(problem)}


def gpu_rows(server: str, sample: Sample, keys: Mapping[str, int]) -> list[dict[str, str]]:
    """Return one row per GPU with its processes; jobs are named by their keys."""
    return [
        {
            "SERVER": one_line(server),
            "GPU": str(gpu.index),
            "MODEL": one_line(gpu.name),
            "USE": percent(gpu.load),
            "MEMORY": _pair(gpu.memory_used, gpu.memory_total),
            "TEMP": "" if gpu.temperature is None else f"{gpu.temperature:.0f} C",
            "POWER": "" if gpu.power is None else _watts(gpu.power),
            "RESERVED BY": reserved_by(gpu, keys),
            "USED BY": used_by(gpu, keys),
        }
        for gpu in sample.gpus
    ]


def used_by(gpu: GpuSample, keys: Mapping[str, int]) -> str:
    """Name the users of a GPU: ``job 3, alice (2 processes)``."""
    counts: dict[str, int] = {}
    for process in gpu.processes:
        user = f"job {keys[process.job]}" if process.job in keys else one_line(process.user) or "another container"
        counts[user] = counts.get(user, 0) + 1
    return ", ".join(user if count == 1 else f"{user} ({count} processes)" for user, count in counts.items())


def reserved_by(gpu: GpuSample, keys: Mapping[str, int]) -> str:
    """Name the holder of a GPU: ``job 3`` of this project, or ``ann (digits)``; empty if nobody has reserved it."""
    if gpu.lease is None:
        return ""
    if gpu.lease.job in keys:
        return f"job {keys[gpu.lease.job]}"
    return one_line(f"{gpu.lease.user} ({gpu.lease.name or gpu.lease.job[-SHOWN_ID:]})")


def percent(value: float | None) -> str:
    """Return a percentage; empty when it is unknown."""
    return "" if value is None else f"{value:.0f} %"


def _pair(used: float | None, total: float | None) -> str:
    """Return ``312/640G``."""
    if used is None or total is None:
        return ""
    number, _, name = readable_size(total, digits=0).partition(" ")
    scale = total / float(number) if float(number) else 1.0
    return f"{used / scale:.0f}/{number}{name[:1]}"


def _disk_free(sample: Sample) -> str:
    if sample.disk_free is None:
        return UNKNOWN if sample.disk_problem else ""
    return one_line(f"{readable_size(sample.disk_free, digits=0).replace('iB', '')} {sample.disk_kind}").strip()


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _watts(watts: float) -> str:
    return f"{watts:.0f} W" if watts < 1000 else f"{watts / 1000:.1f} kW"  # noqa: PLR2004 - a kilowatt
