"""gpus: ask servers who uses their GPUs, or wait for free ones; answers are not trusted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.environments.checks.machine import BOUNDED
from remote_tool.errors import (
    ConnectError,
    HostKeyError,
    JobError,
    LoginError,
    RemoteCommandError,
    SomeServersFailedError,
    UsageError,
)
from remote_tool.protocol.nvidia_smi import ASK_GPUS, ASK_PROCESSES, FORMAT, SILENCE, parse_gpu, parse_process
from remote_tool.readable import MEBIBYTE
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import NoPythonError, NotPreparedError, call_until_answered
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.servers.samples import (
    MOST_GPUS,
    GpuLease,
    GpuProcess,
    entries_of,
    number_of,
    parse_gpu_process,
    parse_lease,
    size_of,
    text_of,
)
from remote_tool.workflows.slurm.partitions import list_partitions
from remote_tool.workflows.slurm.scheduler import is_scheduled, refuse_scheduled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.transport.host import Host
    from remote_tool.workflows.context import Context

FREE, LEASED, USED, UNKNOWN = "free", "leased", "used", "unknown"
MOST_PROCESSES, MOST_QUEUED, MOST_NOTES = 16, 4096, 16
# Seconds between two requests of a command that waits.
INTERVAL = 5.0
NO_PROGRAM, NO_GPUS = 91, 92
# For the two answers, and the login shell.
NVIDIA_SMI_SECONDS = 3 * SILENCE
NO_LEASES = "it has no Python 3.8 or newer, so leases and the queue are unknown"

# The output has three parts with an empty line in between: GPUs, processes, and the user of each process id.
_NVIDIA_SMI = f"""{BOUNDED}
smi=$(command -v nvidia-smi) || smi=/usr/lib/wsl/lib/nvidia-smi
if [ ! -x "$smi" ]; then
    for gpu in /dev/nvidia[0-9]*; do [ -e "$gpu" ] && exit {NO_PROGRAM}; done
    exit {NO_GPUS}
fi
bounded {SILENCE:g} "$smi" {ASK_GPUS} {FORMAT} </dev/null 2>&1 || exit
echo
processes=$(bounded {SILENCE:g} "$smi" {ASK_PROCESSES} {FORMAT} </dev/null 2>&1)
status=$?
printf '%s\\n' "$processes"
echo
printf '%s\\n' "$processes" | while IFS=', ' read -r _ pid _; do
    echo "$pid $(stat -c %U "/proc/$pid" 2>/dev/null)"
done
exit "$status"
"""


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits for GPUs, of any user."""

    job: str
    user: str
    gpus: int


@dataclass(frozen=True)
class GpuStatus:
    """A GPU, and who uses it.

    Attributes:
        index: The number in nvidia-smi.
        uuid: The UUID for CUDA_VISIBLE_DEVICES.
        name: The model.
        state: ``free``, ``leased``, ``used`` by processes without a lease, or ``unknown`` where leases are.
        memory_used: Bytes; None if not reported, like the next two.
        memory_total: Bytes.
        load: Percent.
        lease: The lease; None without one.
        processes: The processes on it, as far as the server shows them.
        is_ours: Whether ``devices`` of the server allows it.
    """

    index: int
    uuid: str
    name: str
    state: str
    memory_used: int | None = None
    memory_total: int | None = None
    load: float | None = None
    lease: GpuLease | None = None
    processes: tuple[GpuProcess, ...] = ()
    is_ours: bool = True


@dataclass(frozen=True)
class ServerGpus:
    """The GPUs of a server.

    Attributes:
        gpus: The GPUs, by number.
        queue: The jobs of all users that wait, in the order of the queue.
        problem: The reason why the GPUs are unknown, or empty.
        notes: Limits of the answer, such as a private /var/tmp.
        partitions: Of a Slurm cluster: what is free in each, in words.
    """

    gpus: tuple[GpuStatus, ...] = ()
    queue: tuple[QueuedJob, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    @property
    def free(self) -> int:
        """The number of free GPUs that may be used."""
        return sum(gpu.state == FREE and gpu.is_ours for gpu in self.gpus)


@dataclass(frozen=True)
class GpusAnswer:
    """The GPUs of servers, and the errors of the other servers.

    Attributes:
        servers: The GPUs of each server that answered.
        errors: The error of each server that could not be asked.
    """

    servers: Mapping[str, ServerGpus]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code of ``gpus``."""
        return SomeServersFailedError(dict(self.errors), list(self.servers)).exit_code if self.errors else 0

    def with_free(self, count: int) -> list[str]:
        """Return the servers with at least this many free GPUs for which no job waits."""
        return [name for name, server in self.servers.items() if server.free >= count and not server.queue]


async def list_gpus(context: Context, servers: Sequence[str] = ()) -> GpusAnswer:
    """Ask every server; where there is no Python, ask only its nvidia-smi."""

    async def ask(server: str) -> ServerGpus:
        if is_scheduled(context.config, server):
            partitions = await list_partitions(await context.pool.host(server))
            return ServerGpus(partitions=tuple(each.describe() for each in partitions))
        try:
            return await _ask(context, server)
        except NoPythonError:
            return parse_gpus(await _ask_nvidia_smi(await context.pool.host(server)), context.config, server)

    results = await on_every(choose_servers(context.config, servers), ask)
    return GpusAnswer(results.values, results.errors)


async def _ask(context: Context, server: str) -> ServerGpus:
    answer = await call_until_answered(context.pool, context.config, server, "gpus", {})
    return parse_gpus(answer, context.config, server)


async def _ask_nvidia_smi(host: Host) -> dict[str, Any]:
    """Run nvidia-smi on a server, and return an answer in the form of the agent's."""
    try:
        result = await host.run(_NVIDIA_SMI, timeout=NVIDIA_SMI_SECONDS, check=False, label="nvidia-smi")
    except RemoteCommandError as error:
        return {"problem": error.message.removeprefix(f"{host.name}: ")}
    if result.exit.status == NO_GPUS:
        return {}
    if result.exit.status == NO_PROGRAM:
        return {"problem": "it has a GPU, but no nvidia-smi"}
    output = result.stdout.decode(errors="replace")
    gpus, processes, users = (part.splitlines() for part in [*output.split("\n\n"), "", ""][:3])
    malformed = [line for line in gpus if parse_gpu(line) is None]
    if not result.ok or malformed or not gpus:
        return {"problem": f"nvidia-smi: {next(iter([*malformed, *filter(None, processes)]), 'no answer')}"}
    names = dict(line.split(" ", 1) for line in users if " " in line)
    gpu_processes = [each for each in map(parse_process, processes) if each is not None]
    return {
        "gpus": [_describe_gpu(gpu, gpu_processes, names) for gpu in map(parse_gpu, gpus) if gpu is not None],
        "note": NO_LEASES,
    }


def _describe_gpu(
    gpu: Mapping[str, Any], processes: Sequence[tuple[str, int, float | None]], names: Mapping[str, str]
) -> dict[str, Any]:
    own = [
        {"pid": pid, "used": used, "user": names.get(str(pid), "")}
        for uuid, pid, used in processes
        if uuid == gpu["uuid"]
    ]
    return {**gpu, "state": USED if own else UNKNOWN, "processes": own}


async def wait_for_gpus(context: Context, servers: Sequence[str], count: int) -> GpusAnswer:
    """Ask until a server has this many free GPUs; servers that cannot be reached now are asked again.

    Raises:
        UsageError: No server can ever have as many.
    """
    if count < 1:
        raise UsageError(f"--wait must be at least 1, found {count}")
    chosen = choose_servers(context.config, servers)
    refuse_scheduled(context.config, chosen, "--wait", "Jobs wait in the queue of Slurm: remote-tool job-run --gpus N")
    while True:
        results = await on_every(choose_servers(context.config, servers), lambda server: _ask(context, server))
        answer = GpusAnswer(results.values, results.errors)
        if answer.with_free(count):
            return answer
        may_have = [each for each in answer.servers.values() if each.problem or _count_allowed(each) >= count]
        if not may_have and not any(_is_temporary(error) for error in answer.errors.values()):
            if answer.errors:
                return answer
            most = max((_count_allowed(each) for each in answer.servers.values()), default=0)
            raise UsageError(f"No server has {count} GPUs; the most that one has is {most}", hint="remote-tool gpus")
        await asyncio.sleep(INTERVAL)


def _is_temporary(error: RemoteToolError) -> bool:
    is_final = isinstance(error, NotPreparedError | NoPythonError | LoginError | HostKeyError)
    return isinstance(error, ConnectError | JobError) and not is_final


def _count_allowed(server: ServerGpus) -> int:
    return sum(gpu.is_ours for gpu in server.gpus)


def parse_gpus(answer: Mapping[str, Any], config: Config, server: str) -> ServerGpus:
    """Parse the answer of a server; malformed entries are left out."""
    devices = config.servers[server].devices
    ignored = answer.get("ignored")
    notes = [answer.get("note"), *(ignored[:MOST_NOTES] if isinstance(ignored, list) else ())]
    return ServerGpus(
        gpus=tuple(_gpu(entry, devices) for entry in entries_of(answer.get("gpus"), MOST_GPUS)),
        queue=tuple(
            QueuedJob(text_of(each.get("job")), text_of(each.get("user")), round(number_of(each.get("gpus")) or 0))
            for each in entries_of(answer.get("queue"), MOST_QUEUED)
        ),
        problem=text_of(answer.get("problem")),
        notes=tuple(text for note in notes if (text := text_of(note))),
    )


def _gpu(entry: Mapping[str, Any], devices: tuple[str, ...]) -> GpuStatus:
    index, uuid = round(number_of(entry.get("index")) or 0), text_of(entry.get("uuid"))
    state = text_of(entry.get("state"))
    return GpuStatus(
        index=index,
        uuid=uuid,
        name=text_of(entry.get("name")),
        state=state if state in {FREE, LEASED, UNKNOWN} else USED,
        memory_used=size_of(entry.get("used"), MEBIBYTE),
        memory_total=size_of(entry.get("memory"), MEBIBYTE),
        load=number_of(entry.get("load")),
        lease=parse_lease(entry.get("lease")),
        processes=tuple(map(parse_gpu_process, entries_of(entry.get("processes"), MOST_PROCESSES))),
        is_ours=not devices or any(name == str(index) or (name in uuid and "-" in name) for name in devices),
    )
