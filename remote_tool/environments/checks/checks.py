"""The checks of one server, each with a hint how to fix it: facts in, checks out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING

from remote_tool.config.environment import EnvironmentKind
from remote_tool.environments.checks.gpu_facts import GpuState
from remote_tool.environments.checks.torch_version import parts_of
from remote_tool.environments.choice import is_fulfilled, plan_environment, require_own_folders
from remote_tool.environments.system_packages import install_command
from remote_tool.errors import EnvironmentSetupError
from remote_tool.readable import KIBIBYTE, MEBIBYTE, readable_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.config.model import Config
    from remote_tool.environments.checks.gpu_facts import GpuAnswer
    from remote_tool.environments.checks.machine import Machine
    from remote_tool.environments.facts import ServerFacts

GIBI = MEBIBYTE  # in KiB, as the kernel counts
LEAST_DISK, LITTLE_DISK = 1 * GIBI, 10 * GIBI
LITTLE_SHARED_MEMORY = 1 * GIBI
FEW_OPEN_FILES = 1024
BUSY_PERCENT = 10
BEHIND = "not checked behind the launch command"


class Status(StrEnum):
    """The result of a check: ``fail`` prevents training, ``warn`` may cause trouble, ``unknown`` was not checked."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One check and its result.

    Attributes:
        name: One or two words, always the same.
        status: The result.
        value: The finding, in a few words.
        hint: The command that fixes it, or another remedy; empty if nothing needs fixing.
    """

    name: str
    status: Status
    value: str
    hint: str = ""

    def worse(self, status: Status, hint: str) -> Check:
        """Return this check with another verdict."""
        return replace(self, status=status, hint=hint)


@dataclass(frozen=True)
class ServerInspection:
    """Everything known about a server.

    Attributes:
        config: The configuration of this server.
        facts: The facts that prepare collects.
        machine: The hardware and settings that matter for training.
        addresses: The host names under which servers are configured to reach each other.
        rsync_here: The version of this machine's rsync; empty if there is none.
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
    def is_behind(self) -> bool:
        """Return whether jobs start behind a launch command or in a container, which is not checked."""
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
        return Check("rsync", Status.FAIL, "not installed", _typed_there(server, install_command(facts, "rsync")))
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
        return Check("environment", Status.FAIL, error.message, _typed_there(server, error.hint) or prepare)
    return Check("environment", Status.FAIL, "not prepared", prepare)


def _python(server: ServerInspection) -> Check:
    if server.is_behind:
        return Check("python", Status.UNKNOWN, BEHIND)
    version = server.facts.environment_python
    return Check("python", Status.OK, version) if version else Check("python", Status.UNKNOWN, "not prepared")


def _torch(server: ServerInspection) -> Check:
    if server.is_behind:
        return Check("torch", Status.UNKNOWN, BEHIND)
    torch = server.machine.torch
    return Check("torch", Status.OK, torch.text if torch else "not installed")


def _nccl(machine: Machine) -> Iterator[Check]:
    if machine.torch and machine.torch.cuda:
        status = Status.OK if machine.nccl else Status.UNKNOWN
        yield Check("nccl", status, machine.nccl or "torch's own")


def _gpus(server: ServerInspection) -> Iterator[Check]:
    gpus = server.machine.gpus
    yield _cards(gpus)
    if gpus.state is GpuState.ANSWERED:
        yield _use(gpus)
        yield Check("driver", Status.OK, gpus.driver)
        yield _cuda(server.machine)


def _cards(gpus: GpuAnswer) -> Check:
    match gpus.state:
        case GpuState.NONE:
            return Check("gpus", Status.OK, "none")
        case GpuState.NO_DRIVER:
            return Check("gpus", Status.FAIL, "GPU found, but no nvidia-smi", "install the NVIDIA driver")
        case GpuState.SILENT:
            return Check("gpus", Status.FAIL, "nvidia-smi does not answer", "sudo reboot")
        case GpuState.FAILED:
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


def _use(gpus: GpuAnswer) -> Check:
    loads = [gpu.load for gpu in gpus.gpus if gpu.load is not None]
    used = readable_size(sum(gpu.used or 0 for gpu in gpus.gpus) * MEBIBYTE)
    load = f"up to {max(loads)} % busy, " if loads else ""
    number = sum(count for _, count in gpus.processes)
    owners = ", ".join(f"{count} of {owner}" for owner, count in gpus.processes)
    text = f"{load}{used} used" + (f", processes: {owners}" if owners else "")
    is_busy = number or any(load > BUSY_PERCENT for load in loads)
    return Check("gpu use", Status.WARN, text, "nvidia-smi; remote-tool job-list") if is_busy else _free(text)


def _free(text: str) -> Check:
    return Check("gpu use", Status.OK, text)


def _cuda(machine: Machine) -> Check:
    """Compare the driver's CUDA with torch's; within a major version an old driver works."""
    driver, torch = machine.gpus.cuda, machine.torch
    if torch is None or not driver:
        return Check("cuda", Status.OK if driver else Status.UNKNOWN, f"up to {driver}" if driver else "unknown")
    if not torch.cuda:
        hint = "install a build of torch with CUDA: remote-tool update-packages"
        return Check("cuda", Status.FAIL, f"torch {torch.version} is built without CUDA", hint)
    text = f"driver supports {driver}, torch is built for {torch.cuda}"
    supported, wanted = parts_of(driver), parts_of(torch.cuda)
    hint = f"update the driver, or use a build of torch for CUDA {driver} in requirements.txt"
    if wanted[:1] > supported[:1]:
        return Check("cuda", Status.FAIL, text, hint)
    return Check("cuda", Status.WARN, text, hint) if wanted > supported else Check("cuda", Status.OK, text)


def _disk(server: ServerInspection) -> Check:
    machine, home = server.machine, server.facts.free_kilobytes
    free = home if machine.disk_free_kilobytes is None else machine.disk_free_kilobytes
    turning = [disk.name for disk in machine.disks if disk.turns]
    where = ", ".join(disk.name for disk in machine.disks) or machine.disk_kind or "disk"
    what = f"hard disk {', '.join(turning)}" if turning else where
    if free is None:
        return Check("disk", Status.UNKNOWN, what)
    text = f"{readable_size(free * KIBIBYTE)} free, {what}"
    home = free if home is None else home
    if min(free, home) < LITTLE_DISK:
        status = Status.FAIL if min(free, home) < LEAST_DISK else Status.WARN
        # If only one of them has little, they are on different disks.
        text += f"; {readable_size(home * KIBIBYTE)} free in ~" if free >= LITTLE_DISK else ""
        folder = f"~/{server.config.remote.project}/" if home >= LITTLE_DISK else "~"
        return Check("disk", status, text, f"du -xh {folder} | sort -h | tail")
    if turning:
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
    """Check what systemd does to jobs when the connection ends."""
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
        return Check("names", Status.WARN, f"{own} resolves to {addresses[0]}, which other servers cannot reach", hint)
    return Check("names", Status.OK, f"{own} is {next(each for each in addresses if not _is_loopback(each))}")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _typed_there(server: ServerInspection, hint: str) -> str:
    """Remove the server's name: every hint of a check already has it."""
    return hint.removeprefix(f"on {server.name}: ")
