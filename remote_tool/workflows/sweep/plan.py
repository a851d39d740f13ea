"""Plan a sweep: a job for each combination of parameters, placed over servers, without contacting a server."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.job import launch_name
from remote_tool.launchers.nodes import refuse_one_machine
from remote_tool.protocol.limits import MOST_AFTER, MOST_SLOTS
from remote_tool.readable import counted
from remote_tool.workflows.sweep.request import command_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.workflows.sweep.request import SweepRequest

MOST_PER_SERVER = MOST_SLOTS
SHOWN_JOBS = 20


@dataclass(frozen=True)
class ServerQueue:
    """The slots of a server, and the work that it has already.

    Attributes:
        server: Its name.
        gpus: GPUs of each job there; 0: none are leased.
        slots: Jobs that it can run at once.
        load: Slots that are taken, or waited for.
        place: Machine and folder; the same for two names of one.
        before: Jobs of the same sweep there that have not ended, in their order.
        chained: Those that an older version started, which lease no slot, so new jobs begin after them.
    """

    server: str
    gpus: int = 0
    slots: int = 1
    load: float = 0
    place: str = ""
    before: tuple[str, ...] = ()
    chained: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepJob:
    """A combination with its server.

    Attributes:
        number: Of the combination, from 0.
        combination: Its parameters.
        command: For the shell.
        server: Where it runs.
        gpus: GPUs that it waits for.
        id: Of its job.
        slots: How many of the sweep's jobs may run at once there; None: its GPUs decide.
        after: The jobs that have to end first.
    """

    number: int
    combination: Mapping[str, str]
    command: str
    server: str
    gpus: int
    id: str
    slots: int | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepPlan:
    """A sweep, ready to be started.

    Attributes:
        launch_id: Shared by its jobs.
        total: The number of its combinations.
        jobs: Those to start.
        queues: The servers.
    """

    launch_id: str
    total: int
    jobs: tuple[SweepJob, ...]
    queues: tuple[ServerQueue, ...]

    @property
    def name(self) -> str:
        """Return its short name: the end of its id."""
        return launch_name(self.launch_id)

    @property
    def headline(self) -> str:
        """Return a summary: ``20 combinations on 2 servers: gpu1 12, gpu2 8``."""
        counts = Counter(job.server for job in self.jobs)
        listed = ", ".join(f"{server} {count}" for server, count in counts.items())
        return f"{counted(len(self.jobs), 'combination')} on {counted(len(counts), 'server')}" + (
            f": {listed}" if listed else ""
        )

    def text(self) -> str:
        """Return the plan for people."""
        lines = [self.headline]
        for job in self.jobs[:SHOWN_JOBS]:
            gpus = f", waits for {counted(job.gpus, 'GPU')}" if job.gpus else ""
            lines += [f"{job.server}: combination {job.number}{gpus}", f"  {job.command}"]
        rest = len(self.jobs) - SHOWN_JOBS
        return "\n".join([*lines, *([f"and {rest} more; --json shows all"] if rest > 0 else [])])

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "combinations": [
                {
                    "number": job.number,
                    "parameters": dict(job.combination),
                    "server": job.server,
                    "gpus": job.gpus,
                    "command": job.command,
                }
                for job in self.jobs
            ]
        }


def plan_sweep(
    request: SweepRequest, numbers: Sequence[int], queues: Sequence[ServerQueue], launch_id: str, ids: Sequence[str]
) -> SweepPlan:
    """Place combinations over servers, so that all servers end at about the same time.

    Args:
        request: The sweep.
        numbers: The combinations to start.
        queues: The servers that may take some.
        launch_id: Of the sweep.
        ids: For the new jobs, one for each number.

    Raises:
        JobError: Two servers are one machine, or too many jobs would wait on one.
    """
    refuse_one_machine(queues)
    servers = place(len(numbers), queues)
    _refuse_too_many(len(numbers), servers, queues)
    by_name = {queue.server: queue for queue in queues}
    jobs = []
    for number, server, job_id in zip(numbers, servers, ids, strict=True):
        queue, combination = by_name[server], request.made[number]
        slots = None if queue.gpus else min(queue.slots, MOST_SLOTS)
        after = () if queue.gpus else queue.chained[-MOST_AFTER:]
        command = command_of(request.command, number, combination)
        jobs.append(SweepJob(number, combination, command, server, queue.gpus, job_id, slots, after))
    return SweepPlan(launch_id, len(request.made), tuple(jobs), tuple(queues))


def place(count: int, queues: Sequence[ServerQueue]) -> list[str]:
    """Return a server for each job: the one that would begin it first if all jobs took the same time."""
    waiting = [((queue.load + 1) / queue.slots, order, queue.load + 1) for order, queue in enumerate(queues)]
    heapq.heapify(waiting)
    servers = []
    for _ in range(count):
        _, order, load = waiting[0]
        servers.append(queues[order].server)
        heapq.heapreplace(waiting, ((load + 1) / queues[order].slots, order, load + 1))
    return servers


def _refuse_too_many(count: int, servers: Sequence[str], queues: Sequence[ServerQueue]) -> None:
    waiting = Counter(servers) + Counter({queue.server: len(queue.before) for queue in queues})
    for server, number in waiting.items():
        if number > MOST_PER_SERVER:
            raise JobError(
                f"{counted(count, 'combination')} would be {number:,} jobs on {server};"
                f" at most {MOST_PER_SERVER:,} jobs of a sweep can wait on a server",
                hint="Use more servers, or fewer combinations now and --resume with more later",
                server=server,
            )
