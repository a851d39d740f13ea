"""Which GPUs of a server a command uses, as CUDA takes them: numbers as in ``nvidia-smi``, or UUIDs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.errors import JobError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.model import Server

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


def check_devices(devices: Sequence[str | int], environment: Mapping[str, str] | None = None) -> None:
    """Refuse devices that CUDA would not accept, and devices that a variable of the same request contradicts.

    Raises:
        UsageError: The devices are invalid.
    """
    for device in map(str, devices):
        if not forms.DEVICE.accepts(device):
            raise UsageError(f"A device must be {forms.DEVICE.wanted}, found {device!r}", hint=HINT)
    if problem := problem_with(devices):
        raise UsageError(f"Devices {joined(devices)}: {problem}", hint=HINT)
    if devices and VISIBLE in (environment or {}):
        raise UsageError(f"--devices and --env {VISIBLE} cannot be combined", hint="Keep one of the two")


def problem_with(devices: Iterable[str | int]) -> str:
    """Say why CUDA would take only some of these devices, or none; empty when it takes all."""
    names = [str(device) for device in devices]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return f"{twice[0]} is given twice"
    if len({name.partition("-")[0] if "-" in name else "" for name in names}) > 1:
        return "numbers, GPU-… and MIG-… cannot be mixed"
    return ""


def joined(devices: Iterable[str | int]) -> str:
    """Return devices as CUDA_VISIBLE_DEVICES takes them."""
    return ",".join(map(str, devices))


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """Return the devices that CUDA takes of its variable: those before the first unknown one; None without it."""
    if VISIBLE not in environment:
        return None
    names = [name.strip() for name in environment[VISIBLE].split(",")]
    return [name for name in itertools.takewhile(lambda name: name != "-1", names) if name]


def refuse_missing(server: str, devices: Sequence[str], gpus: int, uuids: Sequence[str]) -> None:
    """Refuse devices that a server does not have.

    Args:
        server: Its name.
        devices: Those that are wanted.
        gpus: How many it has.
        uuids: Theirs, as far as it tells.

    Raises:
        JobError: It has not all of them, or one is the beginning of several.
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
    """Return the variables of a command: what is given with it wins over its devices, these over the configuration."""
    return {**configured, **with_devices(given, devices)}


def devices_of(server: Server, wanted: Sequence[str | int], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that a command is given on a server: those wanted, else those that are configured.

    None when a variable that is given with the command says it.
    """
    if VISIBLE in environment:
        return ()
    return tuple(map(str, wanted)) or server.devices


def with_devices(environment: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """Return the variables of a command that is to see these devices only; all when there are none."""
    if not devices:
        return dict(environment)
    # CUDA's own order is the fastest first, so that on mixed GPUs its numbers are not those of nvidia-smi.
    order = {ORDER: "PCI_BUS_ID"} if devices[0].isdigit() else {}
    return {**order, **environment, VISIBLE: joined(devices)}
