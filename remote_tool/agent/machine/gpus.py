"""The GPUs of this machine."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

_GPU_DEVICE = re.compile(r"nvidia[0-9]+", re.ASCII)
_DRIVER = "/proc/driver/nvidia/gpus"
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]{1,64})\s*$", re.ASCII | re.MULTILINE)
_LONGEST_INFORMATION = 65536


def list_gpus() -> List[str]:
    """Return the GPUs available to a command: those in CUDA_VISIBLE_DEVICES, or all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA uses the devices before the first unknown one, and -1 is always unknown.
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names[: names.index("-1") if "-1" in names else None] if name]
    return [str(number) for number in range(count_gpus())]


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs, or of AMD GPUs if there are none."""
    return count_nvidia() or _count_amd()


def count_nvidia() -> int:
    """Return the number of NVIDIA GPUs."""
    return sum(1 for name in list_folder("/dev") if _GPU_DEVICE.fullmatch(name))


def list_uuids() -> List[str]:
    """Return the UUIDs of NVIDIA GPUs, as far as the driver reports them."""
    found = []
    for place in list_folder(_DRIVER):
        try:
            with open(f"{_DRIVER}/{place}/information", encoding="ascii", errors="replace") as stream:
                found += _UUID.findall(stream.read(_LONGEST_INFORMATION))
        except OSError:
            continue
    return found


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
    """Return the sorted names in a folder; none when it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
