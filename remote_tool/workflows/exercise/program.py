"""Exercise a node's GPUs, or its CPU, and the network between all ranks: the program of ``check --exercise``.

Servers get it as text and run it with their own Python, 3.8 or newer, once per node. That process starts itself again
for each rank, watches the GPUs, and ends the ranks that are late. Each line of the output is a JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

SOURCE, PLAN, RANK = "REMOTE_TOOL_EXERCISE", "REMOTE_TOOL_EXERCISE_PLAN", "REMOTE_TOOL_EXERCISE_RANK"
# Parts of the time that is given; the rest is for loading torch, and for the ranks to find each other.
PRODUCTS, REDUCTIONS, EXCHANGES = 1 / 4, 1 / 6, 1 / 12
SAMPLE_SECONDS = 2.0
NVIDIA_SMI_SECONDS = 10.0
FIELDS = (
    "index",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.volatile.total",
)
# Bits of clocks_throttle_reasons.active; a power cap in software is usual under full load.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
THROTTLING = {0x8: "hardware", 0x20: "heat", 0x40: "heat", 0x80: "power supply"}
KERNEL_LOGS = (("dmesg",), ("journalctl", "-k", "-q", "-b", "--no-pager"))
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


def say(kind: str, **values: object) -> None:
    """Print one line, whole, also when several processes do so at once."""
    os.write(1, (json.dumps({"kind": kind, **values}) + "\n").encode())


def run_node(plan: dict[str, Any]) -> int:
    """Run the ranks of this node, and end them when the time is up; return the exit status."""
    deadline = time.monotonic() + plan["seconds"]
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if interface:
        say("link", interface=interface, mbit=number(read(f"/sys/class/net/{interface}/speed").strip()))
    ranks = [
        subprocess.Popen([sys.executable, "-c", os.environ[SOURCE]], env={**os.environ, RANK: str(local)})
        for local in range(plan["devices"] or 1)
    ]
    try:
        health = Health(plan["devices"])
        while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
            health.sample()
            with suppress(subprocess.TimeoutExpired):
                next(rank for rank in ranks if rank.returncode is None).wait(
                    min(SAMPLE_SECONDS, max(0.0, deadline - time.monotonic()))
                )
        for local, rank in enumerate(ranks):
            if rank.poll() is None:
                say(
                    "problem",
                    device=local,
                    is_gpu=bool(plan["devices"]),
                    text=f"did not end within {plan['seconds']:g} s",
                )
        health.tell()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return 1 if any(rank.returncode for rank in ranks) else 0


class Health:
    """What nvidia-smi and the kernel say about the GPUs meanwhile."""

    def __init__(self, devices: int) -> None:
        self._temperatures: dict[int, int] = {}
        self._throttled: dict[int, set[str]] = {}
        self._first: dict[int, list[str]] = {}
        self._last: dict[int, list[str]] = {}
        self._is_there = bool(devices)

    def sample(self) -> None:
        """Ask once; a driver that does not answer is not asked again."""
        if not self._is_there:
            return
        printed = run(["nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits"])
        self._is_there = bool(printed)
        for line in printed.splitlines():
            fields = [field.strip() for field in line.split(",")]
            if len(fields) == len(FIELDS) and fields[0].isdigit():
                self._note(int(fields[0]), fields)

    def tell(self) -> None:
        """Print what was seen, by GPU, and the errors in the kernel's log."""
        for index, last in self._last.items():
            say(
                "health",
                device=index,
                temperature=self._temperatures.get(index),
                throttled=sorted(self._throttled.get(index, ())),
                uncorrected=number(last[3]),
                corrected=(number(last[4]) or 0) - (number(self._first[index][4]) or 0),
            )
        if self._last:
            logs = [run(list(command)) for command in KERNEL_LOGS]
            found = [match.groups() for match in XID.finditer(max(logs, key=len))]
            say("xid", is_readable=any(logs), errors=[[gpu, int(code)] for gpu, code in found[-8:]])

    def _note(self, index: int, fields: list[str]) -> None:
        self._first.setdefault(index, fields)
        self._last[index] = fields
        temperature = number(fields[1])
        if temperature is not None:
            self._temperatures[index] = max(temperature, self._temperatures.get(index, temperature))
        with suppress(ValueError):
            reasons = int(fields[2], 16)
            self._throttled.setdefault(index, set()).update(name for bit, name in THROTTLING.items() if reasons & bit)


def number(text: str) -> int | None:
    """Return a number; None for what nvidia-smi says where it has none, such as [N/A]."""
    return int(text) if text.isdigit() else None


def read(path: str) -> str:
    """Return a file's text; empty without it."""
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def run(command: list[str]) -> str:
    """Return the output of a program; empty without it, if it fails, or if it does not answer in time."""
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    try:
        printed = program.communicate(timeout=NVIDIA_SMI_SECONDS)[0]
    except subprocess.TimeoutExpired:
        # It is not waited for: it may hang in the kernel.
        program.kill()
        return ""
    return printed.decode("utf-8", "replace") if program.returncode == 0 else ""


class Rank:
    """One GPU, or the CPU, together with the other ranks."""

    def __init__(self, plan: dict[str, Any], local: int) -> None:
        """Load torch, and find the device."""
        self._torch = importlib.import_module("torch")
        self._network = self._torch.distributed
        self._plan = plan
        self._local = local
        self._is_gpu = bool(plan["devices"])
        # Where tensors are that are sent to other ranks.
        self._sent_from = self._device = self._torch.device("cpu")
        if self._is_gpu:
            count = self._torch.cuda.device_count()
            if count <= local:
                raise RuntimeError(f"torch {self._torch.__version__} sees {count} GPUs")
            self._device = self._torch.device("cuda", local)
            self._torch.cuda.set_device(self._device)
        if plan["nccl"]:
            self._sent_from = self._device

    def exercise(self) -> None:
        """Multiply matrices, then send between ranks."""
        if self._plan["ranks"] == 1:
            self._multiply()
            return
        self._network.init_process_group(
            "nccl" if self._plan["nccl"] else "gloo",
            init_method="env://",
            world_size=self._plan["ranks"],
            rank=self._plan["first_rank"] + self._local,
            timeout=timedelta(seconds=self._plan["seconds"]),
        )
        self._network.barrier()
        self._multiply()
        size, seconds = self._reduce_all()
        if len(self._plan["leaders"]) > 2:  # noqa: PLR2004 - of two nodes, both have the same link
            self._exchange(size, seconds)
        self._network.barrier()
        self._network.destroy_process_group()

    def _multiply(self) -> None:
        """Multiply matrices for some time, and tell the rate."""
        torch = self._torch
        size, at_once, kind = 1024, 1, torch.float32
        if self._is_gpu:
            has_bfloat16 = torch.cuda.get_device_capability(self._device)[0] >= 8  # noqa: PLR2004 - since Ampere
            size, at_once, kind = 8192, 8, torch.bfloat16 if has_bfloat16 else torch.float16
        left, right = (torch.randn(size, size, device=self._device).to(kind) for _ in range(2))
        product = torch.empty_like(left)

        def some() -> None:
            for _ in range(at_once):
                torch.mm(left, right, out=product)
            self._wait()

        some()
        count, began = 0, time.monotonic()
        while time.monotonic() - began < self._plan["seconds"] * PRODUCTS:
            some()
            count += at_once
        rate = count * 2 * size**3 / (time.monotonic() - began)
        name = torch.cuda.get_device_name(self._device) if self._is_gpu else name_of_cpu()
        say("rate", device=self._local, is_gpu=self._is_gpu, name=name, flops=rate, type=str(kind).rpartition(".")[2])

    def _reduce_all(self) -> tuple[int, float]:
        """Sum tensors over all ranks, tell the bus bandwidth, and return the size in bytes and the seconds for each.

        The bandwidth is that of nccl-tests, 2 (n - 1) / n times the size over the time:
        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        """
        seconds, size = self._plan["seconds"] * REDUCTIONS, 1024 * 1024
        largest = (1024 if self._plan["nccl"] else 64) * 1024 * 1024
        took = self._time_reductions(size, 1)
        while size < largest and took < seconds / 16:
            size *= 4
            took = self._time_reductions(size, 1)
        took = self._time_reductions(size, max(1, min(1000, int(seconds / took))))
        ranks = self._plan["ranks"]
        if self._network.get_rank() == 0:
            say("all-reduce", bits=16 * (ranks - 1) / ranks * size / took)
        return size, took

    def _time_reductions(self, size: int, count: int) -> float:
        """Return the seconds that each of some all-reduces takes, on the slowest rank."""
        tensor = self._torch.ones(size // 4, device=self._sent_from)
        self._network.all_reduce(tensor)  # the first one of a size takes longer
        self._wait()
        self._network.barrier()
        began = time.monotonic()
        for _ in range(count):
            self._network.all_reduce(tensor)
        self._wait()
        took = self._torch.tensor([time.monotonic() - began], device=self._sent_from)
        self._network.all_reduce(took, op=self._network.ReduceOp.MAX)
        return max(1e-6, float(took.item()) / count)

    def _exchange(self, size: int, seconds: float) -> None:
        """Send from each node to the next, while neither does anything else; tell at what rate each node receives."""
        leaders = self._plan["leaders"]
        nodes = len(leaders)
        place = -1 if self._local else leaders.index(self._plan["first_rank"])
        tensor = self._torch.ones(size // 4, device=self._sent_from)
        waited, count = 0.0, max(1, min(100, int(self._plan["seconds"] * EXCHANGES / 3 / seconds)))
        for turn in range(2 + nodes % 2):
            senders = [node for node in range(nodes) if turn == (2 if nodes % 2 and node == nodes - 1 else node % 2)]
            for _ in range(count):
                self._network.barrier()
                began = time.monotonic()
                if place in senders:
                    self._network.send(tensor, leaders[(place + 1) % nodes])
                elif place >= 0 and (place - 1) % nodes in senders:
                    self._network.recv(tensor, leaders[place - 1])
                    self._wait()
                    waited += time.monotonic() - began
        if place >= 0:
            say("exchange", bits=8 * size * count / max(1e-6, waited))

    def _wait(self) -> None:
        """Wait until a GPU has done what it was told."""
        if self._is_gpu:
            self._torch.cuda.synchronize(self._device)


def run_rank(plan: dict[str, Any], local: int) -> int:
    """Exercise one device; return the exit status."""
    try:
        Rank(plan, local).exercise()
    except Exception as error:  # noqa: BLE001 - whatever a driver, NCCL or torch raises is the result
        lines = [line for line in str(error).splitlines() if line.strip()]
        say(
            "problem",
            device=local,
            is_gpu=bool(plan["devices"]),
            text=f"{type(error).__name__}: {lines[0] if lines else ''}",
        )
        return 1
    return 0


def name_of_cpu() -> str:
    """Return the model of the CPU, and how many of its cores this process may use."""
    lines = read("/proc/cpuinfo").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or os.uname().machine}, {len(os.sched_getaffinity(0))} cores"


def main() -> int:
    """Run the node, or one rank of it."""
    plan = json.loads(os.environ[PLAN])
    local = os.environ.get(RANK)
    return run_node(plan) if local is None else run_rank(plan, int(local))


if __name__ == "__main__":
    sys.exit(main())
