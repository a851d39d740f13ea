"""The checks of one server: pure functions from its facts to results with hints."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING

from remote_tool.config.environment import EnvironmentKind
from remote_tool.environments.checks.gpu_facts import NvidiaSmiStatus
from remote_tool.environments.choice import is_fulfilled, plan_environment, require_own_folders
from remote_tool.environments.system_packages import install_command
from remote_tool.errors import EnvironmentSetupError
from remote_tool.paths import readable_folder
from remote_tool.readable import KIBIBYTE, MEBIBYTE, readable_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.config.model import Config
    from remote_tool.environments.checks.gpu_facts import GpuReport
    from remote_tool.environments.checks.machine import Machine
    from remote_tool.environments.facts import ServerFacts

GIBIBYTE = MEBIBYTE  # in KiB, the unit of the kernel
LEAST_DISK, LITTLE_DISK = 1 * GIBIBYTE, 10 * GIBIBYTE
LITTLE_SHARED_MEMORY = 1 * GIBIBYTE
FEW_OPEN_FILES = 1024
BUSY_PERCENT = 10
NOT_INSTALLED = "not installed"
NOT_CHECKED_BEHIND = "not checked behind the launch command"


class Status(StrEnum):
    """The result of a check: ``fail`` prevents training, ``warn`` may do harm, ``unknown`` was not checked."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One check and its result.

    Attributes:
        name: One or two words.
        status: The result.
        value: The finding, in a few words.
        hint: The command that fixes it, or another remedy; empty if nothing needs fixing.
    """

    name: str
    status: Status
    value: str
    hint: str = ""

    def with_status(self, status: Status, hint: str) -> Check:
        """Return this check with another result and hint."""
        return replace(self, status=status, hint=hint)


@dataclass(frozen=True)
class ServerInspection:
    """All that is known about a server.

    Attributes:
        config: The configuration of this server.
        facts: The facts that prepare collects.
        machine: The hardware and settings that matter for training.
        addresses: The host names under which servers are configured to reach each other.
        rsync_here: The version of rsync on this machine; empty without one.
    """

    config: Config
    facts: ServerFacts
    machine: Machine
    addresses: Sequence[str] = ()
    rsync_here: str = ""

    @property
    def name(self) -> str:
        return self.facts.server

    @property
    def is_behind_launch_command(self) -> bool:
        """Return whether jobs start behind a launch command or in a container, where nothing is checked."""
        return self.config.environment.kind is EnvironmentKind.INSIDE


def check_server(server: ServerInspection) -> list[Check]:
    """Return the checks of one server, in the order in which they are shown."""
    return [
        _rsync(server),
        _environment(server),
        _python(server),
        _torch(server),
        *_nccl(server.machine),
        *_gpus(server),
        _disk(server),
        _processors(server.machine),
        _memory(server.machine),
        _shared_memory(server.machine),
        _open_files(server.machine),
        _logout(server),
        _names(server),
    ]


def _rsync(server: ServerInspection) -> Check:
    facts = server.facts
    if not facts.rsync:
        return Check("rsync", Status.FAIL, NOT_INSTALLED, _without_server(server, install_command(facts, "rsync")))
    words = facts.rsync_version.split()
    version = words[2] if len(words) > 2 and words[1] == "version" else ""  # noqa: PLR2004 - "rsync  version 3.2.7 …"
    version = "openrsync" if words[:1] == ["openrsync:"] else version
    if not version:
        return Check("rsync", Status.FAIL, "reports no version", "rsync --version")
    return Check("rsync", Status.OK, f"{version}, {server.rsync_here or 'none'} here")


def _environment(server: ServerInspection) -> Check:
    """Check whether the server is prepared, and if not, whether it could be."""
    config, facts = server.config, server.facts
    prepare = f"remote-tool prepare --server {server.name}"
    try:
        require_own_folders(facts)
        if is_fulfilled(config, facts):
            if not facts.has_supervisor:
                return Check("environment", Status.FAIL, "prepared by another version of remote-tool", prepare)
            return Check("environment", Status.OK, f"prepared ({config.environment.kind.value})")
        plan_environment(config, facts)
    except EnvironmentSetupError as error:
        return Check("environment", Status.FAIL, error.message, _without_server(server, error.hint) or prepare)
    return Check("environment", Status.FAIL, "not prepared", prepare)


def _python(server: ServerInspection) -> Check:
    if server.is_behind_launch_command:
        return Check("python", Status.UNKNOWN, NOT_CHECKED_BEHIND)
    version = server.facts.environment_python
    return Check("python", Status.OK, version) if version else Check("python", Status.UNKNOWN, "not prepared")


def _torch(server: ServerInspection) -> Check:
    if server.is_behind_launch_command:
        return Check("torch", Status.UNKNOWN, NOT_CHECKED_BEHIND)
    torch = server.machine.torch
    return Check("torch", Status.OK, torch.text if torch else NOT_INSTALLED)


def _nccl(machine: Machine) -> Iterator[Check]:
    if machine.torch and machine.torch.cuda:
        status = Status.OK if machine.nccl else Status.UNKNOWN
        yield Check("nccl", status, machine.nccl or "torch's own")


def _gpus(server: ServerInspection) -> Iterator[Check]:
    gpus = server.machine.gpus
    yield _cards(gpus)
    if gpus.state is NvidiaSmiStatus.ANSWERED:
        yield _use(gpus)
        yield Check("driver", Status.OK, gpus.driver)
        yield _cuda(server.machine)


def _cards(gpus: GpuReport) -> Check:
    match gpus.state:
        case NvidiaSmiStatus.NONE:
            return Check("gpus", Status.OK, "none")
        case NvidiaSmiStatus.NO_DRIVER:
            return Check("gpus", Status.FAIL, "GPU found, but no nvidia-smi", "install the NVIDIA driver")
        case NvidiaSmiStatus.SILENT:
            return Check("gpus", Status.FAIL, "nvidia-smi does not answer", "sudo reboot")
        case NvidiaSmiStatus.FAILED:
            return Check(
                "gpus", Status.FAIL, f"nvidia-smi: {gpus.message}", "nvidia-smi; dmesg | grep -i -e NVRM -e Xid"
            )
    models: dict[str, int] = {}
    for gpu in gpus.gpus:
        size = f", {readable_size(gpu.memory * MEBIBYTE, digits=0)}" if gpu.memory is not None else ""
        models[gpu.name + size] = models.get(gpu.name + size, 0) + 1
    parts = f", {gpus.parts} MIG parts" if gpus.parts else ""
    text = "; ".join(f"{number} x {model}" for model, number in models.items()) + parts
    if len(models) > 1:
        return Check("gpus", Status.WARN, text, "the slowest GPU limits the speed; choose GPUs with --devices")
    return Check("gpus", Status.OK, text)


def _use(gpus: GpuReport) -> Check:
    loads = [gpu.load for gpu in gpus.gpus if gpu.load is not None]
    used = readable_size(sum(gpu.used or 0 for gpu in gpus.gpus) * MEBIBYTE)
    load = f"up to {max(loads)} % busy, " if loads else ""
    number = sum(count for _, count in gpus.processes)
    owners = ", ".join(f"{count} of {owner}" for owner, count in gpus.processes)
    text = f"{load}{used} used" + (f", processes: {owners}" if owners else "")
    is_busy = number or any(load > BUSY_PERCENT for load in loads)
    if is_busy:
        return Check("gpu use", Status.WARN, text, "nvidia-smi; remote-tool job-list")
    return Check("gpu use", Status.OK, text)


def _cuda(machine: Machine) -> Check:
    """Compare the CUDA of the driver with that of torch; within a major version, an older driver works."""
    driver, torch = machine.gpus.cuda, machine.torch
    if torch is None or not driver:
        return Check("cuda", Status.OK if driver else Status.UNKNOWN, f"up to {driver}" if driver else "unknown")
    if not torch.cuda:
        hint = "install a build of torch with CUDA: remote-tool update-packages"
        return Check("cuda", Status.FAIL, f"torch {torch.version} is built without CUDA", hint)
    text = f"driver supports {driver}, torch is built for {torch.cuda}"
    supported, required = _version_numbers(driver), _version_numbers(torch.cuda)
    hint = f"update the driver, or use a build of torch for CUDA {driver} in requirements.txt"
    if required[:1] > supported[:1]:
        return Check("cuda", Status.FAIL, text, hint)
    return Check("cuda", Status.WARN, text, hint) if required > supported else Check("cuda", Status.OK, text)


def _disk(server: ServerInspection) -> Check:
    machine, home = server.machine, server.facts.free_kilobytes
    free = home if machine.disk_free_kilobytes is None else machine.disk_free_kilobytes
    hard_disks = [disk.name for disk in machine.disks if disk.is_rotational]
    disks = ", ".join(disk.name for disk in machine.disks) or machine.disk_kind or "disk"
    name = f"hard disk {', '.join(hard_disks)}" if hard_disks else disks
    if free is None:
        return Check("disk", Status.UNKNOWN, name)
    text = f"{readable_size(free * KIBIBYTE)} free, {name}"
    home = free if home is None else home
    if min(free, home) < LITTLE_DISK:
        status = Status.FAIL if min(free, home) < LEAST_DISK else Status.WARN
        # If only one has little space, they are on different disks.
        text += f"; {readable_size(home * KIBIBYTE)} free in ~" if free >= LITTLE_DISK else ""
        folder = f"{readable_folder(server.config.remote.project)}/" if home >= LITTLE_DISK else "~"
        return Check("disk", status, text, f"du -xh {folder} | sort -h | tail")
    if hard_disks:
        return Check(
            "disk", Status.WARN, text, "reading data and writing checkpoints will be slow: use an SSD if there is one"
        )
    return Check("disk", Status.OK, text)


def _processors(machine: Machine) -> Check:
    if machine.cores is None:
        return Check("cores", Status.UNKNOWN, "unknown")
    return Check("cores", Status.OK, str(machine.cores))


def _memory(machine: Machine) -> Check:
    if machine.memory_kilobytes is None:
        return Check("memory", Status.UNKNOWN, "unknown")
    free = machine.free_memory_kilobytes
    rest = f", {readable_size(free * KIBIBYTE)} free" if free is not None else ""
    return Check("memory", Status.OK, f"{readable_size(machine.memory_kilobytes * KIBIBYTE)}{rest}")


def _shared_memory(machine: Machine) -> Check:
    free = machine.shared_memory_kilobytes
    if free is None:
        return Check("shared memory", Status.UNKNOWN, "unknown")
    text = f"{readable_size(free * KIBIBYTE)} free"
    if free < LITTLE_SHARED_MEMORY:
        return Check(
            "shared memory", Status.WARN, text, "sudo mount -o remount,size=8G /dev/shm; a container: --shm-size=8g"
        )
    return Check("shared memory", Status.OK, text)


def _open_files(machine: Machine) -> Check:
    usual, most = machine.open_files, machine.most_open_files
    if usual is None:
        return Check("open files", Status.UNKNOWN, "unknown")
    text = f"{usual}, up to {most}" if most else str(usual)
    if usual < FEW_OPEN_FILES:
        return Check("open files", Status.WARN, text, "start the command with: ulimit -n $(ulimit -Hn);")
    return Check("open files", Status.OK, text)


def _logout(server: ServerInspection) -> Check:
    """Check whether systemd lets jobs run when the connection has ended."""
    user = server.facts.username
    if server.facts.ends_sessions:
        hint = f"add KillExcludeUsers={user} to /etc/systemd/logind.conf; sudo systemctl restart systemd-logind"
        return Check("logout", Status.FAIL, "ends jobs (KillUserProcesses)", hint)
    if server.machine.removes_shared_memory:
        hint = "sudo loginctl enable-linger $(id -un)"
        return Check("logout", Status.WARN, "removes shared memory of jobs (RemoveIPC)", hint)
    return Check("logout", Status.OK, "jobs keep running")


def _names(server: ServerInspection) -> Check:
    """Check whether the machine resolves its own name and the others'."""
    machine = server.machine
    own = machine.hostname
    missing = [name for name in server.addresses if name in machine.names and not machine.names[name]]
    if missing:
        hint = f"add the address of {missing[0]} to /etc/hosts, or set address: in configs.yaml"
        return Check("names", Status.FAIL, f"cannot resolve {', '.join(missing)}", hint)
    if not own or own not in machine.names:
        return Check("names", Status.UNKNOWN, "unknown")
    addresses = machine.names[own]
    hint = "echo $(hostname -I | cut -d' ' -f1) $(hostname) | sudo tee -a /etc/hosts"
    if not addresses:
        return Check("names", Status.WARN, f"cannot resolve its own name {own}", hint)
    if all(_is_loopback(address) for address in addresses):
        if len(server.config.usual_servers) == 1:
            return Check("names", Status.OK, f"{own} is {addresses[0]}; there is no other server")
        return Check("names", Status.WARN, f"{own} resolves to {addresses[0]}, which other servers cannot reach", hint)
    return Check("names", Status.OK, f"{own} is {next(each for each in addresses if not _is_loopback(each))}")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _without_server(server: ServerInspection, hint: str) -> str:
    """Remove the server's name from a hint, as every check is shown with it."""
    return hint.removeprefix(f"on {server.name}: ")


def _version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of ``12.4`` for comparison."""
    return tuple(int(part) for part in re.findall(r"[0-9]{1,6}", version)[:3])
