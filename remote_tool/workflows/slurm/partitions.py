"""The partitions of a Slurm cluster, and its clock: limits and settings for ``check``, free GPUs for ``gpus``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.environments.checks.agreement import SMALL_SKEW
from remote_tool.environments.checks.checks import Check, Status
from remote_tool.errors import JobError, RemoteCommandError
from remote_tool.readable import counted
from remote_tool.redaction import redact
from remote_tool.workflows.slurm.look import FIND_PROGRAMS, SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.config.slurm import Slurm
    from remote_tool.transport.host import Host

NAME = "slurm"
CLOCK_NAME = "slurm clock"
LONGEST_PROBLEM = 200
MOST_SHOWN = 20
# Partition, whether it is up, the longest time of a job, a node, its state, its GPUs, and those that are in use.
_FIELDS = 7
_FORMAT = "PartitionName:|,Available:|,Time:|,NodeHost:|,StateLong:|,Gres:|,GresUsed:"
_SINFO = f"sinfo -h -a -N -O '{_FORMAT}'"
# In one last line: the login node's time, the controller's, and the login node's once more.
_CLOCKS = (
    'before=$(date +%s); its=$(SLURM_TIME_FORMAT=%s scontrol show config | sed -n "1s/[^0-9]*//gp")\n'
    'echo "$before $its $(date +%s)"\n'
)
_TIMES = 3
_USABLE = {"idle", "planned", "mixed", "allocated", "completing"}
_UNLIMITED = {"infinite", "UNLIMITED", "n/a"}


@dataclass(frozen=True)
class Partition:
    """A partition.

    Attributes:
        name: Its name.
        is_up: Whether it starts jobs.
        limit: The longest time of a job, as Slurm writes it.
        nodes: The number of its nodes that take jobs.
        idle: Those on which nothing runs.
        others: The number of its nodes that take none: down, drained, reserved.
        gpus: The GPUs of nodes that take jobs.
        used_gpus: Those in use.
    """

    name: str
    is_up: bool
    limit: str
    nodes: int = 0
    idle: int = 0
    others: int = 0
    gpus: int = 0
    used_gpus: int = 0

    def describe(self) -> str:
        """Return it in one line: ``partition gpu: 3 of 8 GPUs free, 1 of 2 nodes idle, up to 1:00:00``."""
        gpus = f"{self.gpus - self.used_gpus} of {counted(self.gpus, 'GPU')} free, " if self.gpus else ""
        others = f" ({self.others} more not available)" if self.others else ""
        limit = "" if self.limit in _UNLIMITED else f", up to {self.limit}"
        state = "" if self.is_up else ", not up"
        return f"partition {self.name}: {gpus}{self.idle} of {counted(self.nodes, 'node')} idle{others}{limit}{state}"


async def list_partitions(host: Host) -> list[Partition]:
    """Ask Slurm for its partitions.

    Raises:
        JobError: It does not answer.
    """
    return parse_partitions(await _ask(host, _SINFO))


async def _ask(host: Host, script: str) -> str:
    try:
        done = await host.run(FIND_PROGRAMS + script, timeout=SECONDS, check=False, label="sinfo")
    except RemoteCommandError as error:
        raise JobError(f"{host.name}: Slurm does not answer: {error.message}", server=host.name) from error
    if not done.ok:
        said = redact(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])[:LONGEST_PROBLEM]
        raise JobError(f"{host.name}: Slurm does not answer: {said or 'sinfo failed'}", server=host.name)
    return done.stdout.decode(errors="replace")


def parse_partitions(text: str) -> list[Partition]:
    """Return partitions from the output of sinfo, which has a line for each node of each; others are left out."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != _FIELDS:
            continue
        name, up, limit, _, state, gres, used = fields
        known = found.get(name, Partition(name, up == "up", limit))
        is_usable = state.rstrip("*+$@^~#!%-") in _USABLE
        found[name] = Partition(
            name,
            known.is_up,
            limit,
            known.nodes + is_usable,
            known.idle + (is_usable and state.startswith(("idle", "planned"))),
            known.others + (not is_usable),
            known.gpus + (count_gpus(gres) if is_usable else 0),
            known.used_gpus + (count_gpus(used) if is_usable else 0),
        )
    return list(found.values())


def count_gpus(text: str) -> int:
    """Return the GPUs in what Slurm calls gres: ``gpu:a100:4(S:0-1),nvme:1`` has 4."""
    count = 0
    for each in text.split(","):
        words = each.partition("(")[0].split(":")
        if words[0] == "gpu" and words[-1].isdigit():
            count += int(words[-1])
    return count


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time limit: ``90``, ``1:30:00``, ``2-12``, ``2-12:00:00``; None if it has none."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in [*parts, *([days] if dash else [])]):
        return None
    numbers = [int(part) for part in parts]
    if dash:
        units: tuple[int, ...] = (3600, 60, 1)
    else:
        # Without days, one number is minutes, and two are minutes and seconds.
        units = {1: (60,), 2: (60, 1)}.get(len(numbers), (3600, 60, 1))
    return int(days or 0) * 86400.0 + sum(number * unit for number, unit in zip(numbers, units, strict=False))


async def check_slurm(host: Host, slurm: Slurm) -> list[Check]:
    """Check what is configured for Slurm against what its partitions allow, and the controller's clock."""
    try:
        answer = await _ask(host, f"{_SINFO} || exit\n{_CLOCKS}")
    except JobError as error:
        hint = f"remote-tool run --server {host.name} --cmd sinfo"
        return [Check(NAME, Status.FAIL, error.message.removeprefix(f"{host.name}: "), hint)]
    return [*judge_slurm(slurm, parse_partitions(answer)), judge_clock(answer.rstrip().rpartition("\n")[2])]


def judge_clock(times: str) -> Check:
    """Return the check of the controller's clock, by which Slurm says when jobs began.

    Args:
        times: Three times in whole seconds since the epoch: the login node's, the controller's, and the login node's
            once more. The controller's is missing where Slurm does not say it.
    """
    words = times.split()
    if len(words) != _TIMES or not all(word.isdecimal() for word in words):
        return Check(CLOCK_NAME, Status.UNKNOWN, "unknown")
    before, its, after = (int(word) for word in words)
    # Of each, the fraction of a second is unknown.
    ahead, behind = its - after - 1, before - its - 1
    seconds = max(ahead, behind)
    if seconds <= SMALL_SKEW:
        return Check(CLOCK_NAME, Status.OK, "the controller's agrees with this server's")
    way = "ahead of" if ahead > behind else "behind"
    value = f"the controller's is {seconds} s {way} this server's"
    return Check(CLOCK_NAME, Status.WARN, value, "tell the administrators of the cluster")


def judge_slurm(slurm: Slurm, partitions: Sequence[Partition]) -> list[Check]:
    """Return the check of each partition that jobs may go to, or of the one that is missing."""
    wanted = [name for name in slurm.options.get("partition", "").split(",") if name]
    names = [partition.name for partition in partitions]
    missing = [name for name in wanted if name not in names]
    if missing:
        return [Check(NAME, Status.FAIL, f"no partition {missing[0]}", f"partition: {', '.join(names[:MOST_SHOWN])}")]
    chosen = [partition for partition in partitions if not wanted or partition.name in wanted]
    return [_judge_partition(slurm, partition) for partition in chosen[:MOST_SHOWN]]


def _judge_partition(slurm: Slurm, partition: Partition) -> Check:
    asked, most = seconds_of(slurm.options.get("time", "")), seconds_of(partition.limit)
    text = partition.describe()
    if asked is not None and most is not None and asked > most:
        return Check(
            NAME, Status.FAIL, f"{text}; time is {slurm.options['time']}", f'time: "{partition.limit}" in slurm:'
        )
    if slurm.gpus and not partition.gpus:
        return Check(NAME, Status.FAIL, f"{text}; no GPUs", "Leave out gres in slurm:, or choose another partition")
    if not partition.is_up or not partition.nodes or partition.nodes < slurm.nodes:
        hint = f"sinfo -R -p {shlex.quote(partition.name)} says why nodes take no jobs"
        return Check(NAME, Status.WARN, text, hint)
    return Check(NAME, Status.OK, text)
