"""Plan a fan-out: work split over every slot of every server, without contacting a server."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from remote_tool.config.devices import VISIBLE, visible_devices, with_devices
from remote_tool.config.limits import check_items, check_texts
from remote_tool.errors import UsageError
from remote_tool.launchers.command import with_interpreter
from remote_tool.launchers.job_request import JobRequest
from remote_tool.launchers.nodes import refuse_one_machine
from remote_tool.launchers.placeholders import OF_ITEMS, check_template, check_words, fill, names_in, placeholders
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The server's record of a job has no room for a larger shard number.
MOST_SHARDS = 100_000
MOST_SLOTS = 1024
NAME_LENGTH = 6
TAG = "fan-out-"


@dataclass(frozen=True)
class _Positions:
    """The order of arguments without names, which never changes."""

    command: str
    servers: tuple[str, ...] = ()
    total: int | None = None
    items: tuple[str, ...] = field(default=(), repr=False)
    per_server: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    retries: int = 1
    sync: bool = True
    artifacts: tuple[str, ...] = ()
    gather: str = ""


@dataclass(frozen=True)
class FanOutRequest(JobRequest, _Positions):
    """Work to split over servers; see :class:`JobRequest` for the options that are not listed here.

    Attributes:
        command: For the shell, with placeholders; a ``.py`` file as first word runs with the environment's Python.
        total: A number that is split evenly; None: nothing is counted.
        items: Texts to hand out one by one instead.
        per_server: Slots of each server; None: as a host list says, else one for each GPU, or one.
        retries: Restart a failed shard up to N times while the fan-out is followed.
        artifacts: Globs of files to pull; with placeholders, except {item}.
        gather: Folder of the project to copy pulled files to, in ``<name>/<shard>/``; empty: none.
        devices: GPUs to use on each server, by number or UUID; empty: as configured, else all.
    """

    artifacts: tuple[str, ...] = ()

    def __post_init__(self, env: Mapping[str, str] | None) -> None:
        """Refuse an invalid request."""
        check_texts(self.command, env or {})
        self._check_amounts()
        known = placeholders(counted=self.total is not None)
        check_template("--cmd", self.command, (*known, *(OF_ITEMS if self.items else ())))
        for glob in self.artifacts:
            check_template("--artifact", glob, known)
        self._check_options(
            env,
            "helper-fan-out --cmd 'play.py --games {count}'",
            artifacts=Shard(0, 1, 0, 1).globs(self.artifacts),
            tags_besides=len(fan_out_tags("", Shard(0, 1), Slot("", 0))),
        )
        _refuse_same_gpus(self.environment)
        check_items(self.items, "REMOTE_TOOL_ITEM")
        check_words(self.command, self.items)

    def _check_amounts(self) -> None:
        if self.total is not None and self.items:
            raise UsageError("Give either --total or --items, not both")
        for option, value, least in (
            ("--total", self.total, 1),
            ("--per-server", self.per_server, 1),
            ("--retries", self.retries, 0),
        ):
            if value is not None and value < least:
                raise UsageError(f"{option} must be at least {least}, found {value}")
        if self.per_server is not None and self.per_server > MOST_SLOTS:
            raise UsageError(f"--per-server must be at most {MOST_SLOTS}, found {self.per_server}")
        if len(self.items) > MOST_SHARDS:
            raise UsageError(f"--items has {len(self.items)} lines; the limit is {MOST_SHARDS}")


@dataclass(frozen=True)
class ServerSlots:
    """A server's facts for a fan-out.

    Attributes:
        server: The server's name.
        gpus: As CUDA_VISIBLE_DEVICES names them.
        listed: Its number of processes in a host list; None without one.
        place: Machine and folder; the same for two names of one.
    """

    server: str
    gpus: tuple[str, ...] = ()
    listed: int | None = None
    place: str = ""


@dataclass(frozen=True)
class Slot:
    """Runs one job at a time.

    Attributes:
        server: The server.
        number: Counted on the server.
        gpus: GPUs of its jobs; empty if the server has none, or chooses them.
        wanted: How many GPUs its server reserves for each job; 0: none.
    """

    server: str
    number: int
    gpus: tuple[str, ...] = ()
    wanted: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return with_devices({}, self.gpus)

    @property
    def text(self) -> str:
        if self.wanted:
            return counted(self.wanted, "free GPU")
        return f"{'GPUs' if len(self.gpus) > 1 else 'GPU'} {','.join(self.gpus)}" if self.gpus else "no GPU"


@dataclass(frozen=True)
class Shard:
    """A part of the work.

    Attributes:
        number: From 0.
        shards: Total number of shards.
        start: First number of this shard; None without a total.
        stop: First number after this shard; None without a total.
        item: Of a list; None without one.
    """

    number: int
    shards: int
    start: int | None = None
    stop: int | None = None
    item: str | None = None

    @property
    def values(self) -> dict[str, str]:
        """Return the value of each placeholder, not quoted."""
        found = {"shard": str(self.number), "shards": str(self.shards)}
        if self.start is not None and self.stop is not None:
            found |= {"count": str(self.stop - self.start), "start": str(self.start), "stop": str(self.stop)}
        return found if self.item is None else {**found, "item": self.item}

    @property
    def environment(self) -> dict[str, str]:
        return {f"REMOTE_TOOL_{name.upper()}": value for name, value in self.values.items()}

    @property
    def text(self) -> str:
        part = "" if self.start is None else f", {self.start} to {self.stop}"
        return f"shard {self.number} of {self.shards}{part}"

    def command(self, template: str) -> str:
        """Replace placeholders in a command; each value is one quoted word, ``{item:raw}`` the words of the item."""
        quoted = {name: shlex.quote(value) for name, value in self.values.items()}
        if self.item is not None and "item:raw" in names_in(template):
            quoted["item:raw"] = shlex.join(shlex.split(self.item))
        return fill(with_interpreter(template), quoted)

    def globs(self, templates: Sequence[str]) -> tuple[str, ...]:
        """Replace placeholders in globs."""
        return tuple(fill(template, self.values) for template in templates)


@dataclass(frozen=True)
class FanOutPlan:
    """A fan-out, ready to be started.

    Attributes:
        launch_id: Shared by its jobs.
        command: With placeholders.
        slots: Where it runs.
        shards: The shards.
        is_queue: Whether shards are handed out as slots become free.
    """

    launch_id: str
    command: str
    slots: tuple[Slot, ...]
    shards: tuple[Shard, ...]
    is_queue: bool = False

    @property
    def name(self) -> str:
        """Return its short name: the end of its id."""
        return fan_out_name(self.launch_id)

    @property
    def headline(self) -> str:
        """``4 shards on 4 slots of 2 servers``."""
        servers = {slot.server for slot in self.slots}
        counts = ((len(self.shards), "shard"), (len(self.slots), "slot"), (len(servers), "server"))
        return "{} on {} of {}".format(*(counted(count, noun) for count, noun in counts))

    def text(self) -> str:
        """Return the plan for people."""
        if self.is_queue:
            lines = [f"{self.headline}, each handed out when a slot is free"]
            lines += [f"{slot.server}: slot {slot.number}, {slot.text}" for slot in self.slots]
            return "\n".join([*lines, self.shards[0].text, f"  {self.shards[0].command(self.command)}"])
        lines = [self.headline]
        for shard, slot in zip(self.shards, self.slots, strict=False):
            lines += [f"{slot.server}: {shard.text}, {slot.text}", f"  {shard.command(self.command)}"]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON; a shard of a queue has no server yet."""
        slots = [{"server": slot.server, "slot": slot.number, "environment": slot.environment} for slot in self.slots]
        places = [] if self.is_queue else [{"server": slot.server, "slot": slot.number} for slot in self.slots]
        shards = [
            {
                "shard": shard.number,
                **(places[shard.number] if places else {"server": None, "slot": None}),
                "command": shard.command(self.command),
                "environment": shard.environment,
            }
            for shard in self.shards
        ]
        return {"slots": slots, "shards": shards}


def plan_fan_out(request: FanOutRequest, servers: Sequence[ServerSlots], launch_id: str) -> FanOutPlan:
    """Assign the work to slots.

    Raises:
        JobError: Two servers are one machine.
        UsageError: There are too many slots.
    """
    slots = make_slots(servers, request.per_server, request.gpus)
    shards = make_shards(request, min(len(slots), request.total or len(slots)))
    used = slots if request.items else slots[: len(shards)]
    return FanOutPlan(launch_id, request.command, used, shards, is_queue=bool(request.items))


def make_slots(servers: Sequence[ServerSlots], per_server: int | None = None, wanted: int = 0) -> tuple[Slot, ...]:
    """Return one slot for each GPU of every server, or the requested number, which share its GPUs evenly.

    With a number of wanted GPUs, each slot has that many at a time, whichever are free.
    """
    refuse_one_machine(servers)
    if wanted:
        return tuple(
            Slot(each.server, number, wanted=wanted)
            for each in servers
            for number in range(per_server or each.listed or max(1, len(each.gpus) // wanted))
        )
    return tuple(
        Slot(each.server, number, gpus)
        for each in servers
        for number, gpus in enumerate(_share(each.gpus, per_server or each.listed or max(1, len(each.gpus))))
    )


def make_shards(request: FanOutRequest, count: int) -> tuple[Shard, ...]:
    """Split the work: one item per shard, or a number of shards; the first ones take the remainder."""
    if request.items:
        return tuple(Shard(number, len(request.items), item=item) for number, item in enumerate(request.items))
    if request.total is None:
        return tuple(Shard(number, count) for number in range(count))
    return tuple(
        Shard(number, count, start, stop) for number, (start, stop) in enumerate(split_evenly(request.total, count))
    )


def split_evenly(total: int, parts: int) -> list[tuple[int, int]]:
    """Return where each part starts and stops: 7 in 3 parts are 3, 2 and 2."""
    size, more = divmod(total, parts)
    return list(pairwise(accumulate((size + (part < more) for part in range(parts)), initial=0)))


def fan_out_name(launch_id: str) -> str:
    """Return the end of an id, the short name of a fan-out."""
    return launch_id[-NAME_LENGTH:]


def fan_out_tags(launch_id: str, shard: Shard, slot: Slot) -> tuple[str, ...]:
    """Return a job's tags: for the whole fan-out, its shard, and its slot."""
    return f"{TAG}{fan_out_name(launch_id)}", f"shard-{shard.number}", f"slot-{slot.number}"


def _share(gpus: Sequence[str], slots: int) -> list[tuple[str, ...]]:
    if not gpus:
        return [()] * slots
    if slots >= len(gpus):
        return [(gpus[slot % len(gpus)],) for slot in range(slots)]
    return [tuple(gpus[start:stop]) for start, stop in split_evenly(len(gpus), slots)]


def _refuse_same_gpus(environment: Mapping[str, str]) -> None:
    """Refuse a variable that gives GPUs to all slots; an empty one is allowed."""
    if visible_devices(environment):
        raise UsageError(
            f"--env {VISIBLE} would give every slot the same GPUs", hint="--devices LIST makes a slot for each of them"
        )
