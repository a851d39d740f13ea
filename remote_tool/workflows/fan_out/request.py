"""The request for a fan-out, and the placeholders that it may use."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.config.devices import VISIBLE, visible_devices
from remote_tool.config.limits import check_items, check_texts
from remote_tool.errors import UsageError
from remote_tool.launchers.job_request import JobRequest
from remote_tool.workflows.work.placeholders import fill, is_in_quotes, names_in, parse_braces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The server's record of a job has no room for a larger shard number.
MOST_SHARDS = 100_000
MOST_SLOTS = 1024
OF_ALL, OF_TOTAL, OF_ITEMS = ("shard", "shards"), ("count", "start", "stop"), ("item", "item:raw")
RAW_ITEM = OF_ITEMS[1]
# Of a job, besides those of the request: for the fan-out, its shard and its slot.
OWN_TAGS = 3


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
        known = (*OF_ALL, *(OF_TOTAL if self.total is not None else ()))
        _check_template("--cmd", self.command, (*known, *(OF_ITEMS if self.items else ())))
        for glob in self.artifacts:
            _check_template("--artifact", glob, known)
        example = dict.fromkeys(known, "0")
        self._check_options(
            env,
            "helper-fan-out --cmd 'play.py --games {count}'",
            artifacts=[fill(parse_braces(glob), example) for glob in self.artifacts],
            tags_besides=OWN_TAGS,
        )
        _refuse_same_gpus(self.environment)
        check_items(self.items, "REMOTE_TOOL_ITEM")
        _check_words(self.command, self.items)

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


def _check_template(option: str, template: str, known: Sequence[str]) -> None:
    """Refuse a command or a glob with other placeholders than the known ones, or with an item in quotes."""
    try:
        parts = parse_braces(template)
    except ValueError:
        raise UsageError(
            f"{option} {template!r} has an unmatched brace", hint="write {{ and }} for literal braces"
        ) from None
    for name, before in names_in(parts):
        if name not in known:
            raise _unknown_placeholder(option, name, known)
        if name in OF_ITEMS and is_in_quotes(before):
            raise UsageError(f"{option}: {{{name}}} is quoted automatically; remove the quotes around it")


def _unknown_placeholder(option: str, name: str, known: Sequence[str]) -> UsageError:
    hint = f"{{{{{name}}}}} is a literal pair of braces"
    needed = {**dict.fromkeys(OF_TOTAL, "--total"), **(dict.fromkeys(OF_ITEMS, "--items") if option == "--cmd" else {})}
    if name in needed:
        return UsageError(f"{option}: {{{name}}} needs {needed[name]}", hint=hint)
    listed = ", ".join(f"{{{each}}}" for each in known)
    return UsageError(f"{option}: {{{name}}} is not a placeholder; use {listed}", hint=hint)


def _check_words(command: str, items: Sequence[str]) -> None:
    """Refuse items that ``{item:raw}`` cannot split into words: with an open quote, or a backslash at the end."""
    if RAW_ITEM not in dict(names_in(parse_braces(command))):
        return
    for number, item in enumerate(items, 1):
        try:
            shlex.split(item)
        except ValueError as error:
            reason = str(error).lower()
            raise UsageError(
                f"--items: {{item:raw}} cannot split item {number} into words: {item!r:.200}: {reason}",
                hint="quote it as for a shell, or pass each line as one word with {item}",
            ) from None


def _refuse_same_gpus(environment: Mapping[str, str]) -> None:
    """Refuse a variable that gives GPUs to all slots; an empty one is allowed."""
    if visible_devices(environment):
        raise UsageError(
            f"--env {VISIBLE} would give every slot the same GPUs", hint="--devices LIST makes a slot for each of them"
        )
