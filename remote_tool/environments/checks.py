"""What is fit for training on one server and what is not, and what mends it: facts in, checks out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING

from remote_tool.config.model import EnvironmentKind
from remote_tool.environments.choice import plan_environment, require_own_folders
from remote_tool.environments.gpu_facts import GpuState
from remote_tool.environments.system_packages import install_command
from remote_tool.environments.torch_version import parts_of
from remote_tool.environments.wish import is_fulfilled
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.gpu_facts import GpuAnswer
    from remote_tool.environments.machine import Machine

KILO = 1024
MEBI = 1024 * KILO  # in KiB, as are all sizes here: 1 GiB
LEAST_DISK, LITTLE_DISK = 1 * MEBI, 10 * MEBI
LITTLE_SHARED_MEMORY = 1 * MEBI
FEW_OPEN_FILES = 1024
BUSY_PERCENT = 10
BEHIND = "behind the launch command"


class Status(StrEnum):
    """How a check came out: ``fail`` keeps training from working, ``warn`` may surprise."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: One or two words, always the same.
        status: How it came out.
        value: What was found, in a few words.
        hint: The command that mends it, or what to do; empty when nothing is to be done.
    """

    name: str
    status: Status
    value: str
    hint: str = ""

    def worse(self, status: Status, hint: str) -> Check:
        """Return this check with another verdict."""
        return replace(self, status=status, hint=hint)


@dataclass(frozen=True)
class Examined:
    """What is known of a server.

    Attributes:
        config: What is wished.
        facts: What prepare would want to know.
        machine: What it has for training.
        addresses: The names by which the configuration lets servers reach each other.
    """

    config: Config
    facts: ServerFacts
    machine: Machine
    addresses: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.facts.server

    @property
    def is_behind(self) -> bool:
        """Whether jobs begin behind a launch command or in a container, where nobody looks."""
        return self.config.environment.kind is EnvironmentKind.INSIDE


def check_server(server: Examined) -> list[Check]:
    """Check what one server alone tells."""
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


def _rsync(server: Examined) -> Check:
    facts = server.facts
    if not facts.rsync:
        return Check("rsync", Status.FAIL, "not there", _typed_there(server, install_command(facts, "rsync")))
    words = facts.rsync_version.split()
    if words[:1] == ["openrsync:"]:
        return Check("rsync", Status.OK, "openrsync")
    version = words[2] if len(words) > 2 and words[1] == "version" else ""  # noqa: PLR2004 - "rsync  version 3.2.7 …"
    if not version:
        return Check("rsync", Status.FAIL, "does not tell its version", "rsync --version")
    return Check("rsync", Status.OK, version)


def _environment(server: Examined) -> Check:
    """Tell whether it is prepared, and else whether it could be."""
    config, facts = server.config, server.facts
    prepare = f"remote-tool prepare --server {server.name}"
    try:
        require_own_folders(facts)
        if is_fulfilled(config, facts):
            if not facts.has_supervisor:
                return Check("environment", Status.FAIL, "of another version of remote-tool", prepare)
            return Check("environment", Status.OK, f"prepared ({config.environment.kind.value})")
        plan_environment(config, facts)
    except EnvironmentSetupError as error:
        return Check("environment", Status.FAIL, error.message, _typed_there(server, error.hint) or prepare)
    return Check("environment", Status.FAIL, "not prepared", prepare)


def _python(server: Examined) -> Check:
    if server.is_behind:
        return Check("python", Status.UNKNOWN, BEHIND)
    version = server.facts.environment_python
    return Check("python", Status.OK, version) if version else Check("python", Status.UNKNOWN, "not prepared")


def _torch(server: Examined) -> Check:
    if server.is_behind:
        return Check("torch", Status.UNKNOWN, BEHIND)
    torch = server.machine.torch
    return Check("torch", Status.OK, torch.text if torch else "not installed")


def _nccl(machine: Machine) -> Iterator[Check]:
    if machine.torch and machine.torch.cuda:
        status = Status.OK if machine.nccl else Status.UNKNOWN
        yield Check("nccl", status, machine.nccl or "torch's own")


def _gpus(server: Examined) -> Iterator[Check]:
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
            return Check("gpus", Status.FAIL, "there is one, but no nvidia-smi", "install the driver of NVIDIA")
        case GpuState.SILENT:
            return Check("gpus", Status.FAIL, "nvidia-smi does not answer", "sudo reboot")
        case GpuState.FAILED:
            return Check(
                "gpus", Status.FAIL, f"nvidia-smi: {gpus.message}", "nvidia-smi; dmesg | grep -i -e NVRM -e Xid"
            )
    models: dict[str, int] = {}
    for gpu in gpus.gpus:
        size = f", {gpu.memory / KILO:.0f} GiB" if gpu.memory is not None else ""
        models[gpu.name + size] = models.get(gpu.name + size, 0) + 1
    parts = f", {gpus.parts} MIG parts" if gpus.parts else ""
    text = "; ".join(f"{number} x {model}" for model, number in models.items()) + parts
    if len(models) > 1:
        return Check("gpus", Status.WARN, text, "the slowest GPU sets the pace: --devices chooses")
    return Check("gpus", Status.OK, text)


def _use(gpus: GpuAnswer) -> Check:
    loads = [gpu.load for gpu in gpus.gpus if gpu.load is not None]
    used = sum(gpu.used or 0 for gpu in gpus.gpus) / KILO
    load = f"{max(loads)} % at most, " if loads else ""
    number = sum(count for _, count in gpus.processes)
    owners = ", ".join(f"{count} of {owner}" for owner, count in gpus.processes)
    text = f"{load}{used:.1f} GiB used" + (f", processes: {owners}" if owners else "")
    is_busy = number or any(load > BUSY_PERCENT for load in loads)
    return Check("gpu use", Status.WARN, text, "nvidia-smi; remote-tool job-list") if is_busy else _free(text)


def _free(text: str) -> Check:
    return Check("gpu use", Status.OK, text)


def _cuda(machine: Machine) -> Check:
    """Hold what the driver supports against what torch was built for; within one major version old drivers do."""
    driver, torch = machine.gpus.cuda, machine.torch
    if torch is None or not driver:
        return Check("cuda", Status.OK if driver else Status.UNKNOWN, f"up to {driver}" if driver else "not told")
    if not torch.cuda:
        hint = "install a torch with CUDA: remote-tool update-packages"
        return Check("cuda", Status.FAIL, f"torch {torch.version} is built without it", hint)
    text = f"driver up to {driver}, torch for {torch.cuda}"
    supported, wanted = parts_of(driver), parts_of(torch.cuda)
    hint = f"update the driver, or name a torch for CUDA {driver} in requirements.txt"
    if wanted[:1] > supported[:1]:
        return Check("cuda", Status.FAIL, text, hint)
    return Check("cuda", Status.WARN, text, hint) if wanted > supported else Check("cuda", Status.OK, text)


def _disk(server: Examined) -> Check:
    free, machine = server.facts.free_kilobytes, server.machine
    turning = [disk.name for disk in machine.disks if disk.turns]
    where = ", ".join(disk.name for disk in machine.disks) or machine.disk_kind or "disk"
    what = f"turning disk {', '.join(turning)}" if turning else where
    if free is None:
        return Check("disk", Status.UNKNOWN, what)
    text = f"{_size(free)} free, {what}"
    if free < LITTLE_DISK:
        status = Status.FAIL if free < LEAST_DISK else Status.WARN
        return Check("disk", status, text, "du -xh ~ | sort -h | tail")
    if turning:
        return Check("disk", Status.WARN, text, "data and checkpoints are slow there: use another disk if there is one")
    return Check("disk", Status.OK, text)


def _processors(machine: Machine) -> Check:
    if machine.cores is None:
        return Check("cores", Status.UNKNOWN, "not told")
    return Check("cores", Status.OK, str(machine.cores))


def _memory(machine: Machine) -> Check:
    if machine.memory_kilobytes is None:
        return Check("memory", Status.UNKNOWN, "not told")
    free = machine.free_memory_kilobytes
    rest = f", {_size(free)} free" if free is not None else ""
    return Check("memory", Status.OK, f"{_size(machine.memory_kilobytes)}{rest}")


def _shared_memory(machine: Machine) -> Check:
    free = machine.shared_memory_kilobytes
    if free is None:
        return Check("shared memory", Status.UNKNOWN, "not told")
    text = f"{_size(free)} free"
    if free < LITTLE_SHARED_MEMORY:
        return Check(
            "shared memory", Status.WARN, text, "sudo mount -o remount,size=8G /dev/shm; a container: --shm-size=8g"
        )
    return Check("shared memory", Status.OK, text)


def _open_files(machine: Machine) -> Check:
    usual, most = machine.open_files, machine.most_open_files
    if usual is None:
        return Check("open files", Status.UNKNOWN, "not told")
    text = f"{usual}, up to {most}" if most else str(usual)
    if usual < FEW_OPEN_FILES:
        return Check("open files", Status.WARN, text, "begin the command with: ulimit -n $(ulimit -Hn);")
    return Check("open files", Status.OK, text)


def _logout(server: Examined) -> Check:
    """Tell what the machine's systemd does to jobs when our connection ends."""
    user = server.facts.username
    if server.facts.ends_sessions:
        hint = f"add KillExcludeUsers={user} to /etc/systemd/logind.conf; sudo systemctl restart systemd-logind"
        return Check("logout", Status.FAIL, "ends jobs (KillUserProcesses)", hint)
    if server.machine.removes_shared_memory:
        hint = "sudo loginctl enable-linger $(id -un)"
        return Check("logout", Status.WARN, "removes shared memory of jobs (RemoveIPC)", hint)
    return Check("logout", Status.OK, "jobs go on")


def _names(server: Examined) -> Check:
    """Tell whether the machine finds itself and the others where a name is used."""
    machine = server.machine
    own = machine.hostname
    missing = [name for name in server.addresses if name in machine.names and not machine.names[name]]
    if missing:
        hint = f"write the address of {missing[0]} into /etc/hosts, or into address: in configs.yaml"
        return Check("names", Status.FAIL, f"does not find {', '.join(missing)}", hint)
    if not own or own not in machine.names:
        return Check("names", Status.UNKNOWN, "not told")
    addresses = machine.names[own]
    hint = "echo $(hostname -I | cut -d' ' -f1) $(hostname) | sudo tee -a /etc/hosts"
    if not addresses:
        return Check("names", Status.WARN, f"does not find its own name {own}", hint)
    if all(_is_loopback(address) for address in addresses):
        return Check("names", Status.WARN, f"{own} is {addresses[0]}, which others cannot reach", hint)
    return Check("names", Status.OK, f"{own} is {next(each for each in addresses if not _is_loopback(each))}")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _size(kilobytes: int) -> str:
    if kilobytes < MEBI:
        return f"{kilobytes / KILO:.0f} MiB"
    return f"{kilobytes / MEBI:.0f} GiB" if kilobytes >= 10 * MEBI else f"{kilobytes / MEBI:.1f} GiB"


def _typed_there(server: Examined, hint: str) -> str:
    """Leave out where it is typed: every hint of a check says so."""
    return hint.removeprefix(f"on {server.name}: ")
