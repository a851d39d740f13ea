"""Read and judge what an exercise measured: which GPU, CPU or node is slow, against the median of its kind."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from remote_tool.environments.checks.checks import Check, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# A part of the median. Other programs share CPUs and networks, but not a GPU that the exercise has reserved.
SLOW_GPU, SLOW_CPU, SLOW_NODE = 0.8, 0.5, 0.5
MOST_LINES, LONGEST_TEXT = 4096, 300
MOST = 1e21
XID_MEANINGS = "https://docs.nvidia.com/deploy/xid-errors"


@dataclass(frozen=True)
class ExercisedDevice:
    """A GPU, or the CPU of a server without one.

    Attributes:
        server: The server.
        device: The number of the GPU; None: the CPU.
        name: Its model, the kind with which it is compared.
        flops: Floating-point operations per second of a matrix product.
        type: Of the numbers, such as bfloat16.
        median: The median of its kind; None if it is the only one.
    """

    server: str
    device: int | None
    name: str
    flops: float
    type: str
    median: float | None = None

    @property
    def is_slow(self) -> bool:
        """Return whether it is much slower than the median of its kind."""
        least = SLOW_CPU if self.device is None else SLOW_GPU
        return self.median is not None and self.flops < least * self.median


@dataclass(frozen=True)
class GpuHealth:
    """What nvidia-smi said about a GPU during the exercise.

    Attributes:
        device: Its number.
        temperature: The highest, in °C; None if not reported.
        throttled: What slowed it down: hardware, heat, or power supply.
        uncorrected: ECC errors that were not corrected, since the driver was loaded; None without ECC.
        corrected: ECC errors that were corrected during the exercise.
    """

    device: int
    temperature: int | None
    throttled: tuple[str, ...]
    uncorrected: int | None
    corrected: int


@dataclass
class NodeMeasurement:
    """What a server has printed.

    Attributes:
        devices: Its GPUs, or its CPU.
        health: Of its GPUs.
        xid: Errors of the driver in the kernel's log: the GPU's PCI address and the code.
        log_is_readable: Whether the kernel's log may be read; None without a GPU.
        bits: Bus bandwidth of the all-reduce in bit/s; of the first node only.
        received: Bit/s that it received from the node before it, on its own; None with fewer than three nodes.
        interface: The network interface towards the other nodes; empty if unknown.
        link: Its nominal bit/s; None if unknown.
        problems: Messages of its ranks.
    """

    devices: list[ExercisedDevice] = field(default_factory=list)
    health: list[GpuHealth] = field(default_factory=list)
    xid: list[tuple[str, int]] = field(default_factory=list)
    log_is_readable: bool | None = None
    bits: float | None = None
    received: float | None = None
    interface: str = ""
    link: float | None = None
    problems: list[str] = field(default_factory=list)


def read_measurement(server: str, printed: str) -> NodeMeasurement:
    """Read the lines of a server, which may be anything."""
    found = NodeMeasurement()
    for line in printed.splitlines()[:MOST_LINES]:
        try:
            values = json.loads(line)
            _READERS[values["kind"]](found, server, values)
        except (KeyError, TypeError, ValueError, RecursionError):
            continue  # such as a warning of a library
    return found


def _read_rate(found: NodeMeasurement, server: str, values: Mapping[str, Any]) -> None:
    device = _whole(values["device"]) if values["is_gpu"] is True else None
    rate = _positive(values["flops"])
    found.devices.append(ExercisedDevice(server, device, _text(values["name"]), rate, _text(values["type"])))


def _read_health(found: NodeMeasurement, _: str, values: Mapping[str, Any]) -> None:
    temperature, uncorrected = (
        None if values[name] is None else _whole(values[name]) for name in ("temperature", "uncorrected")
    )
    throttled = tuple(_text(each) for each in values["throttled"][:8])
    corrected = _whole(max(0, values["corrected"]))
    found.health.append(GpuHealth(_whole(values["device"]), temperature, throttled, uncorrected, corrected))


def _read_xid(found: NodeMeasurement, _: str, values: Mapping[str, Any]) -> None:
    found.log_is_readable = values["is_readable"] is True
    found.xid = [(_text(gpu), _whole(code)) for gpu, code in values["errors"][:8]]


def _read_all_reduce(found: NodeMeasurement, _: str, values: Mapping[str, Any]) -> None:
    found.bits = _positive(values["bits"])


def _read_exchange(found: NodeMeasurement, _: str, values: Mapping[str, Any]) -> None:
    found.received = _positive(values["bits"])


def _read_link(found: NodeMeasurement, _: str, values: Mapping[str, Any]) -> None:
    found.interface = _text(values["interface"])
    found.link = None if values["mbit"] is None else _positive(values["mbit"]) * 1e6


def _read_problem(found: NodeMeasurement, _: str, values: Mapping[str, Any]) -> None:
    which = f"GPU {_whole(values['device'])}: " if values["is_gpu"] is True else ""
    found.problems.append(f"{which}{_text(values['text'])}")


_READERS = {
    "rate": _read_rate,
    "health": _read_health,
    "xid": _read_xid,
    "all-reduce": _read_all_reduce,
    "exchange": _read_exchange,
    "link": _read_link,
    "problem": _read_problem,
}


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise ValueError
    return value


def _positive(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST or math.isnan(value):
        raise ValueError
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value[:LONGEST_TEXT]


def with_medians(devices: Iterable[ExercisedDevice]) -> tuple[ExercisedDevice, ...]:
    """Return devices with the median of their kind."""
    found = tuple(devices)
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in found:
        rates[each.name, each.type].append(each.flops)
    return tuple(_with_median(each, rates[each.name, each.type]) for each in found)


def _with_median(device: ExercisedDevice, rates: list[float]) -> ExercisedDevice:
    known = median(rates) if len(rates) > 1 else None
    return ExercisedDevice(device.server, device.device, device.name, device.flops, device.type, known)


def judge(
    measured: Mapping[str, NodeMeasurement], devices: Sequence[ExercisedDevice], bits: float | None, ranks: int
) -> dict[str, list[Check]]:
    """Return the checks of each server.

    Args:
        measured: What each server has printed, in the order of their nodes.
        devices: Those of all servers, with the medians of their kinds.
        bits: Bus bandwidth of the all-reduce in bit/s; None if there was none.
        ranks: The number of ranks that took part.
    """
    rates = _rates_of_nodes(measured)
    checks = {}
    for server, found in measured.items():
        own = [each for each in devices if each.server == server]
        checks[server] = [
            *([_judge_speed(own)] if own else []),
            *([_judge_health(found)] if found.health else []),
            *([_judge_network(server, found, bits, ranks, rates)] if bits is not None else []),
        ]
    return checks


def _judge_speed(devices: list[ExercisedDevice]) -> Check:
    slow = [each for each in devices if each.is_slow]
    if slow:
        hint = (
            "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER says why"
            if slow[0].device is not None
            else "another program may use the CPU: look with top"
        )
        return Check("speed", Status.FAIL, "; ".join(map(_describe_slow, slow)), hint)
    kinds: dict[tuple[str, str], list[ExercisedDevice]] = defaultdict(list)
    for each in devices:
        kinds[each.name, each.type].append(each)
    return Check("speed", Status.OK, "; ".join(_describe_kind(name, kind, own) for (name, kind), own in kinds.items()))


def _describe_slow(device: ExercisedDevice) -> str:
    assert device.median is not None
    which = "" if device.device is None else f"GPU {device.device}: "
    usual = f"{readable_flops(device.median)}, the median of {device.name}"
    return f"{which}{readable_flops(device.flops)}, {_share(device.flops, device.median)} of {usual}"


def _share(value: float, whole: float) -> str:
    return f"{100 * value / whole:.0f} %"


def _describe_kind(name: str, kind: str, devices: list[ExercisedDevice]) -> str:
    rates = [each.flops for each in devices]
    low, high = readable_flops(min(rates)), readable_flops(max(rates))
    rate = high if low == high else f"{low} to {high}"
    known = devices[0].median
    compared = "the only one of its kind" if known is None else f"median {readable_flops(known)}"
    count = "" if devices[0].device is None else f"{len(devices)} x "
    return f"{count}{name}: {rate} in {kind}, {compared}"


def readable_flops(flops: float) -> str:
    """Format floating-point operations per second with about three digits: 655 TFLOP/s, 98.1 GFLOP/s."""
    return _readable(flops, (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9)))


def readable_bits(bits: float) -> str:
    """Format bits per second with about three digits: 9.41 Gbit/s, 94.1 Mbit/s."""
    return _readable(bits, (("Gbit/s", 1e9), ("Mbit/s", 1e6)))


def _readable(value: float, units: Sequence[tuple[str, float]]) -> str:
    unit, size = next((each for each in units if value >= each[1]), units[-1])
    digits = max(0, 2 - math.floor(math.log10(value / size)))
    return f"{value / size:.{min(digits, 3)}f} {unit}"


def _judge_health(found: NodeMeasurement) -> Check:
    failures = [
        f"GPU {each.device}: {each.uncorrected} uncorrected ECC errors" for each in found.health if each.uncorrected
    ]
    warnings = [*_warnings(found.health), *(f"Xid {code} on GPU {gpu}" for gpu, code in found.xid)]
    known = [each.temperature for each in found.health if each.temperature is not None]
    warmest = f"up to {max(known)} °C" if known else ""
    text = "; ".join([*failures, *warnings, *([warmest] if warmest else [])])
    if failures:
        return Check("gpu health", Status.FAIL, text, "nvidia-smi -q -d ECC,ROW_REMAPPER; ask for a reset of the GPU")
    if warnings:
        return Check(
            "gpu health", Status.WARN, text, f"codes of Xid: {XID_MEANINGS}" if found.xid else "look at its cooling"
        )
    log = "" if found.log_is_readable else "; the kernel's log, which has Xid errors, is not readable"
    return Check("gpu health", Status.OK, f"no errors, {warmest}{log}" if warmest else f"no errors{log}")


def _warnings(health: list[GpuHealth]) -> Iterator[str]:
    for each in health:
        if each.throttled:
            at = "" if each.temperature is None else f" at {each.temperature} °C"
            yield f"GPU {each.device} was slowed down by {' and '.join(each.throttled)}{at}"
        if each.corrected:
            yield f"GPU {each.device}: {each.corrected} corrected ECC errors meanwhile"


def _judge_network(server: str, found: NodeMeasurement, bits: float, ranks: int, rates: Mapping[str, float]) -> Check:
    link = "" if found.link is None else f"; {found.interface} has {readable_bits(found.link)}"
    value = f"{readable_bits(bits)} bus bandwidth, {ranks} ranks{link}"
    usual = median(rates.values()) if rates else 0.0
    if server in rates and rates[server] < SLOW_NODE * usual:
        share = f"{_share(rates[server], usual)} of {readable_bits(usual)}, the median of the nodes"
        own = f"{readable_bits(rates[server])} with each neighbour, {share}"
        return Check(
            "all-reduce", Status.FAIL, f"{own}; {value}", "remote-tool bandwidth measures each pair of servers"
        )
    return Check("all-reduce", Status.OK, value)


def _rates_of_nodes(measured: Mapping[str, NodeMeasurement]) -> dict[str, float]:
    """Return the rate of each node: that of the better one of its two links, as a slow neighbour slows the other."""
    names = [server for server, found in measured.items() if found.received is not None]
    if len(names) < len(measured) or len(names) < 3:  # noqa: PLR2004
        return {}
    received = [measured[server].received or 0.0 for server in names]
    return {server: max(received[place], received[(place + 1) % len(names)]) for place, server in enumerate(names)}
