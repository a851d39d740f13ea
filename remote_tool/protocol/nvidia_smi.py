"""Queries of nvidia-smi, and the lines of its answers."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple


FORMAT = "--format=csv,noheader,nounits"
ASK_GPUS = "--query-gpu=index,uuid,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,power.limit"
ASK_PROCESSES = "--query-compute-apps=gpu_uuid,pid,used_memory"
# Without persistence mode, the first answer of a machine with many GPUs takes this long.
SILENCE = 15.0
LONGEST_TEXT = 200
_NUMBERS = ("load", "used", "memory", "temperature", "power", "power_limit")
_PROCESS_FIELDS = 3


def parse_gpu(line: str) -> Optional[Dict[str, Any]]:
    """Return a GPU of an answer; None if the line is something else."""
    index, *fields = [field.strip() for field in line.split(",")]
    if not index.isdigit() or len(fields) != len(_NUMBERS) + 2:
        return None
    uuid, name = fields[:2]
    numbers = {name: _number(field) for name, field in zip(_NUMBERS, fields[2:])}  # noqa: B905 - newer than Python 3.8
    return {"index": int(index), "uuid": uuid[:LONGEST_TEXT], "name": name[:LONGEST_TEXT], **numbers}


def parse_process(line: str) -> Optional[Tuple[str, int, Optional[float]]]:
    """Return the UUID of the GPU, the process id, and the memory of a process; None if the line is something else."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != _PROCESS_FIELDS or not fields[1].isdigit():
        return None
    return fields[0], int(fields[1]), _number(fields[2])


def _number(text: str) -> Optional[float]:
    """Return a number; None for ``[N/A]`` and the like."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None
