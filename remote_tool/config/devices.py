"""GPUs of a server for a command, in the syntax of CUDA: numbers as in ``nvidia-smi``, or UUIDs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.errors import JobError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.document import ConfigNode
    from remote_tool.config.keys import ProjectParts

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
HINT = "--devices 0,3 or --devices GPU-8932f937,GPU-5ac02f11, as nvidia-smi -L lists them"


def parse_devices(text: str | None) -> tuple[str, ...]:
    """Read ``0,3`` or ``GPU-8932f937,…``; None means no devices.

    Raises:
        UsageError: It is not a list of devices.
    """
    if text is None:
        return ()
    devices = tuple(word.strip() for word in text.split(","))
    check_devices(devices)
    return devices


def read_devices(place: ConfigNode, _project: ProjectParts) -> tuple[str, ...]:
    """Read ``devices:`` of configs.yaml."""
    found = [each.text(forms.DEVICE) for each in place.items("a list of GPUs, such as [0, 3]")]
    devices = tuple(each for each in found if each)
    if problem := _problem_with(devices):
        place.refuse(problem)
    return devices


def check_devices(devices: Sequence[str | int], environment: Mapping[str, str] | None = None) -> None:
    """Refuse devices that CUDA would not accept, and devices that a variable of the same request contradicts.

    Raises:
        UsageError: The devices are invalid.
    """
    for device in map(str, devices):
        if not forms.DEVICE.accepts(device):
            raise UsageError(f"A device must be {forms.DEVICE.expected}, found {device!r}", hint=HINT)
    if problem := _problem_with(devices):
        raise UsageError(f"Devices {joined(devices)}: {problem}", hint=HINT)
    if devices and VISIBLE in (environment or {}):
        raise UsageError(f"--devices and --env {VISIBLE} cannot be combined", hint="Keep one of the two")


def _problem_with(devices: Iterable[str | int]) -> str:
    """Return why CUDA would use only some or none of these devices; empty if it uses all."""
    names = [str(device) for device in devices]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return f"{twice[0]} is given twice"
    if len({name.partition("-")[0] if "-" in name else "" for name in names}) > 1:
        return "numbers, GPU-… and MIG-… cannot be mixed"
    return ""


def joined(devices: Iterable[str | int]) -> str:
    """Return devices in the format of CUDA_VISIBLE_DEVICES."""
    return ",".join(map(str, devices))


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """Return the devices in CUDA's variable, up to the first invalid one; None without the variable."""
    if VISIBLE not in environment:
        return None
    names = [name.strip() for name in environment[VISIBLE].split(",")]
    return [name for name in itertools.takewhile(lambda name: name != "-1", names) if name]


def refuse_missing(server: str, devices: Sequence[str], gpus: int, uuids: Sequence[str]) -> None:
    """Refuse devices that a server does not have.

    Args:
        server: The server's name.
        devices: The requested devices.
        gpus: The number of GPUs.
        uuids: The UUIDs, as far as known.

    Raises:
        JobError: A device is missing or ambiguous.
    """
    for device in devices:
        problem = _missing(device, gpus, uuids)
        if problem:
            raise JobError(
                f"{server} {problem}", hint=f"remote-tool run --server {server} --cmd 'nvidia-smi -L'", server=server
            )


def _missing(device: str, gpus: int, uuids: Sequence[str]) -> str:
    if not gpus:
        return f"has no GPU, but device {device} is requested"
    if device.isdigit():
        known = "only GPU 0" if gpus == 1 else f"only GPUs 0 to {gpus - 1}"
        return "" if int(device) < gpus else f"has {known}, not {device}"
    matching = [uuid for uuid in uuids if uuid.startswith(device.lower().replace("gpu-", "GPU-", 1))]
    if device.startswith("MIG-") or not uuids or len(matching) == 1:
        return ""
    return f"has {len(matching)} GPUs whose UUID starts with {device}" if matching else f"has no GPU {device}"


def command_environment(
    configured: Mapping[str, str], given: Mapping[str, str], devices: Sequence[str]
) -> dict[str, str]:
    """Return a command's variables: given ones override its devices, which override the configuration."""
    return {**configured, **with_devices(given, devices)}


def devices_of(
    configured: tuple[str, ...], requested: Sequence[str | int], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a command's devices on a server: the requested ones, or the configured ones.

    None if a variable given with the command sets them.
    """
    if VISIBLE in environment:
        return ()
    return tuple(map(str, requested)) or configured


def with_devices(environment: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """Return a command's variables that restrict it to these devices; unchanged without devices."""
    if not devices:
        return dict(environment)
    # CUDA's default order is fastest first, which on mixed GPUs differs from that of nvidia-smi.
    order = {ORDER: "PCI_BUS_ID"} if devices[0].isdigit() else {}
    return {**order, **environment, VISIBLE: joined(devices)}
