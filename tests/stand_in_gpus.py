"""A stand-in for nvidia-smi: it answers ``top`` and stop_if_idle, once or in a loop, as the real one does."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

GPU = "{index}, GPU-{index}, NVIDIA H100 80GB HBM3, {load}, {used}, 81559, {temperature}, 312.50, 700.00"


def gpu_line(index: int, *, load: int | str = 97, used: int | str = 40000, temperature: int = 61) -> str:
    """Return what nvidia-smi says about a GPU."""
    return GPU.format(index=index, load=load, used=used, temperature=temperature)


def process_line(index: int, pid: int, *, used: int = 40000) -> str:
    """Return what nvidia-smi says about a process on a GPU."""
    return f"GPU-{index}, {pid}, {used}\n"


def set_gpus(folder: Path, *gpus: str, processes: str = "") -> None:
    """Change what an nvidia-smi answers from now on."""
    for name, text in (("gpus", "".join(f"{line}\n" for line in gpus)), ("processes", processes)):
        (folder / f"{name}.new").write_text(text)
        # It may be read at this moment.
        (folder / f"{name}.new").rename(folder / name)


def put_nvidia_smi(folder: Path, *gpus: str, processes: str = "", otherwise: str = "") -> Path:
    """Write an nvidia-smi into a folder; ``otherwise`` is shell that it runs before it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    set_gpus(folder, *gpus, processes=processes)
    program = folder / "nvidia-smi"
    # An earlier one may be running.
    new = folder / "nvidia-smi.new"
    new.write_text(
        f"""#!/bin/sh
here=${{0%/*}}
echo "$$ $*" >> "$here/asked"
{otherwise}
case "$1" in
--query-compute-apps=*) exec cat "$here/processes" ;;
--query-gpu=index,uuid,utilization.gpu)
  while awk -F, -v OFS=, 'NF > 3 {{ print $1, $2, $4; next }} 1' "$here/gpus" && [ "$3" = -l ]; do sleep 0.2; done ;;
--query-gpu=*)
  while cat "$here/gpus" && [ "$3" = -l ]; do sleep 0.2; done ;;
esac
"""
    )
    new.chmod(0o755)
    return new.rename(program)


def remove_in_use(folder: Path) -> None:
    """Remove a folder of leases or of an nvidia-smi, though jobs may write into it at the same time."""
    for _ in range(100):
        with suppress(OSError):
            shutil.rmtree(folder)
            return
    shutil.rmtree(folder)
