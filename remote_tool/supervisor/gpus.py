"""The GPUs of this machine."""

from __future__ import annotations

import os
import re
from typing import List

_GPU_DEVICE = re.compile(r"nvidia[0-9]+", re.ASCII)


def list_gpus() -> List[str]:
    """Return the GPUs that a command may use, as CUDA_VISIBLE_DEVICES names them: those that it allows, or all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA takes the devices before the first that it does not know, and -1 is none that it knows.
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names[: names.index("-1") if "-1" in names else None] if name]
    return [str(number) for number in range(count_nvidia() or _count_amd())]


def count_nvidia() -> int:
    """Return how many GPUs of NVIDIA this machine has."""
    return sum(1 for name in list_folder("/dev") if _GPU_DEVICE.fullmatch(name))


def _count_amd() -> int:
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    count = 0
    for node in list_folder(nodes):
        try:
            with open(f"{nodes}/{node}/gpu_id", encoding="ascii") as stream:
                count += int(stream.read(32)) != 0
        except (OSError, ValueError):
            continue
    return count


def list_folder(path: str) -> List[str]:
    """Return the names in a folder, sorted; none when it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
