"""Plan a sweep: a job for each combination of parameters, placed over servers, without contacting a server."""

from __future__ import annotations

import heapq
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from remote_tool.config.devices import VISIBLE
from remote_tool.config.limits import check_texts
from remote_tool.config.sweep_values import NAME, NUMBER, Random, SweepSpec
from remote_tool.errors import JobError, UsageError
from remote_tool.launchers.command import with_interpreter
from remote_tool.launchers.job_request import JobRequest
from remote_tool.launchers.nodes import refuse_one_machine
from remote_tool.launchers.placeholders import is_in_quotes
from remote_tool.protocol.limits import MOST_AFTER, MOST_SLOTS
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


TAG = "sweep-"
NAME_LENGTH = 6
MOST_PER_SERVER = MOST_SLOTS
SHOWN_JOBS = 20
# The state of a combination without a job.
MISSING = "missing"
# Braces around a word, unless a $ makes them the shell's; two braces on each side stand for one.
_PLACEHOLDER = re.compile(rf"(?<!\$)(?:\{{\{{({NAME.pattern})\}}\}}|\{{({NAME.pattern})\}})")


@dataclass(frozen=True)
class SweepRequest(JobRequest):
    """A job for each combination of parameters; see :class:`JobRequest` for the options that are not listed here.

    Attributes:
        command: For the shell, with a placeholder for each parameter, such as ``{lr}``; a ``.py`` file as first word
            runs with the environment's Python.
        grid: The values of each parameter, as a sequence, or as a text such as ``0.1,0.01`` or ``1..5``.
        random: Combinations to draw, such as ``Random(20, {"lr": "log:1e-5..1e-1"}, seed=7)``.
        combinations: Combinations that are listed one by one.
        gpus: GPUs of each job; 0: one where a server has GPUs, unless ``per_server`` is given.
        per_server: Run this many jobs at once on each server, without leasing GPUs; None: one on a server without GPUs.
    """

    grid: Mapping[str, Sequence[object] | str] = field(default_factory=dict, kw_only=True)
    random: Random = field(default_factory=Random, kw_only=True)
    combinations: Sequence[Mapping[str, object]] = field(default=(), kw_only=True)
    per_server: int | None = field(default=None, kw_only=True)

    def __post_init__(self, env: Mapping[str, str] | None) -> None:
        """Refuse an invalid request."""
        check_texts(self.command, env or {})
        example = "helper-sweep --cmd 'train.py --lr {lr}' --grid lr=0.1,0.01"
        self._check_options(env, example, tags_besides=1, may_wait=True)
        if self.after:
            raise UsageError("--after is only for job-run")
        if self.gpus and self.per_server is not None:
            raise UsageError(
                "--gpus and --per-server cannot be combined", hint="With --gpus, free GPUs decide how many run at once"
            )
        if self.per_server is not None and self.per_server < 1:
            raise UsageError(f"--per-server must be at least 1, found {self.per_server}")
        object.__setattr__(self, "random", self.random.seeded())
        check_command(self.command, self.made)

    @cached_property
    def made(self) -> tuple[dict[str, str], ...]:
        """All combinations, by number."""
        return SweepSpec(self.command, self.grid, self.random, self.combinations).made()

    def of_job(self, job: SweepJob) -> JobRequest:
        """Return the request of one job, with what it waits for."""
        options = {each.name: getattr(self, each.name) for each in fields(JobRequest)}
        return JobRequest(**{**options, "gpus": job.gpus, "after": job.after, "after_any": bool(job.after)})

    @property
    def may_lease(self) -> bool:
        """Return whether its jobs wait for GPUs on servers that have some."""
        return self.per_server is None and not self.devices and VISIBLE not in self.environment


def check_command(command: str, made: Sequence[Mapping[str, str]]) -> None:
    """Refuse a command with other placeholders than the parameters.

    Raises:
        UsageError: One is unknown, unused, or in quotes that its value would break.
    """
    names, used, position, before = set(made[0]), set(), 0, ""
    for match in _PLACEHOLDER.finditer(command):
        before += command[position : match.start()]
        position, name = match.end(), match[2]
        if name is None:
            before += "_"
            continue
        if name not in names and name != NUMBER:
            listed = ", ".join(f"{{{each}}}" for each in (*made[0], NUMBER))
            raise UsageError(
                f"--cmd: {{{name}}} is not a parameter of the sweep; it has {listed}",
                hint=f"{{{{{name}}}}} keeps the braces",
            )
        used.add(name)
        odd = next((each[name] for each in made if name != NUMBER and shlex.quote(each[name]) != each[name]), None)
        if odd is not None and is_in_quotes(before):
            raise UsageError(
                f"--cmd: {{{name}}} is quoted automatically, as {odd!r:.60} needs; remove the quotes around it"
            )
        before += "_"
    if unused := [name for name in made[0] if name not in used]:
        raise UsageError(
            f"--cmd does not use the parameter {unused[0]}",
            hint=f"Add it: --cmd 'train.py --{unused[0]} {{{unused[0]}}}'",
        )


def command_of(template: str, number: int, combination: Mapping[str, str]) -> str:
    """Return the command of a combination; each value is one quoted word, unless it needs no quotes."""
    values = {**combination, NUMBER: str(number)}

    def fill(match: re.Match[str]) -> str:
        return f"{{{match[1]}}}" if match[2] is None else shlex.quote(values[match[2]])

    return _PLACEHOLDER.sub(fill, with_interpreter(template))


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
        return sweep_name(self.launch_id)

    @property
    def headline(self) -> str:
        """``20 combinations on 2 servers: gpu1 12, gpu2 8``."""
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


def sweep_name(launch_id: str) -> str:
    """Return the end of an id, the short name of a sweep."""
    return launch_id[-NAME_LENGTH:]
