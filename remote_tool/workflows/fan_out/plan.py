"""Plan a fan-out: work split over every slot of every server, without contacting a server."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from remote_tool.config.devices import with_devices
from remote_tool.jobs.job import FAN_OUT_TAG, launch_name
from remote_tool.launchers.command import with_interpreter
from remote_tool.launchers.nodes import refuse_one_machine
from remote_tool.readable import counted
from remote_tool.workflows.fan_out.request import RAW_ITEM
from remote_tool.workflows.work.placeholders import fill, names_in, parse_braces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.workflows.fan_out.request import FanOutRequest


@dataclass(frozen=True)
class ServerSlots:
    """The facts about a server that decide which slots it has.

    Attributes:
        server: The server's name.
        gpus: As CUDA_VISIBLE_DEVICES names them.
        listed: Its number of processes in a host list; None without one.
        place: Machine and folder; the same for two names of one.
        is_scheduled: Whether Slurm starts its jobs, and chooses their GPUs.
    """

    server: str
    gpus: tuple[str, ...] = ()
    listed: int | None = None
    place: str = ""
    is_scheduled: bool = False


@dataclass(frozen=True)
class Slot:
    """A place on a server for one job at a time.

    Attributes:
        server: The server.
        number: Counted on the server.
        gpus: GPUs of its jobs; empty if the server has none, or chooses them.
        reserved: Number of GPUs that the server reserves for each of its jobs; 0: none.
    """

    server: str
    number: int
    gpus: tuple[str, ...] = ()
    reserved: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return with_devices({}, self.gpus)

    @property
    def text(self) -> str:
        if self.reserved:
            return counted(self.reserved, "free GPU")
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
        parts = parse_braces(with_interpreter(template))
        quoted = {name: shlex.quote(value) for name, value in self.values.items()}
        if self.item is not None and RAW_ITEM in dict(names_in(parts)):
            quoted[RAW_ITEM] = shlex.join(shlex.split(self.item))
        return fill(parts, quoted)

    def globs(self, templates: Sequence[str]) -> tuple[str, ...]:
        """Replace placeholders in globs."""
        return tuple(fill(parse_braces(template), self.values) for template in templates)


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
        return launch_name(self.launch_id)

    @property
    def headline(self) -> str:
        """Return a summary: ``4 shards on 4 slots of 2 servers``."""
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


def make_slots(servers: Sequence[ServerSlots], per_server: int | None = None, reserved: int = 0) -> tuple[Slot, ...]:
    """Return one slot for each GPU of every server, or the requested number, which share its GPUs evenly.

    With ``reserved``, the jobs of a slot have that many GPUs instead, whichever are free.
    """
    refuse_one_machine(servers)
    if reserved:
        return tuple(
            Slot(each.server, number, reserved=reserved)
            for each in servers
            for number in range(per_server or each.listed or max(1, len(each.gpus) // reserved))
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


def fan_out_tags(launch_id: str, shard: Shard, slot: Slot) -> tuple[str, ...]:
    """Return a job's tags: for the whole fan-out, its shard, and its slot."""
    return f"{FAN_OUT_TAG}{launch_name(launch_id)}", f"shard-{shard.number}", f"slot-{slot.number}"


def _share(gpus: Sequence[str], slots: int) -> list[tuple[str, ...]]:
    if not gpus:
        return [()] * slots
    if slots >= len(gpus):
        return [(gpus[slot % len(gpus)],) for slot in range(slots)]
    return [tuple(gpus[start:stop]) for start, stop in split_evenly(len(gpus), slots)]
