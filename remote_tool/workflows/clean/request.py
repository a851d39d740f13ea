"""What a clean may remove, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job

LONGEST_WHAT = 100
LARGEST = 2**62


@dataclass(frozen=True)
class Item:
    """Something of ours.

    Attributes:
        server: Where; empty for here.
        what: Of which kind.
        count: How many there are.
        bytes: What they take.
        goes: How many of them go.
        frees: What these take.
        why: Why others stay; empty where there is nothing to say.
    """

    server: str
    what: str
    count: int
    bytes: int
    goes: int
    frees: int
    why: str = ""


@dataclass(frozen=True)
class CleanRequest:
    """What may go.

    Attributes:
        servers: On which servers; empty: all.
        older: Only jobs that ended so many seconds ago or more, and notes of that age.
        keep: So many jobs of each server stay, the newest.
        jobs: Keys or ids: only these jobs, and also such as their servers do not know any more.
        artifacts: Whether files go too that jobs wrote and that came home.
        all: Leave the servers as they were found.
    """

    servers: tuple[str, ...] = ()
    older: float | None = None
    keep: int | None = None
    jobs: tuple[str, ...] = ()
    artifacts: bool = False
    all: bool = False

    def __post_init__(self) -> None:
        """Refuse options that exclude each other."""
        if self.all and (self.older is not None or self.keep is not None or self.jobs):
            raise UsageError("--all removes everything; it cannot be combined with --older, --keep or --job")
        if self.jobs and (self.older is not None or self.keep is not None):
            raise UsageError("--job cannot be combined with --older or --keep", hint="Leave out --older and --keep")


@dataclass(frozen=True)
class CleanAnswer:
    """What there is and may go; or, once it was removed, what has gone.

    Attributes:
        request: What was asked for.
        items: What there is, by server; here is the empty name.
        errors: The error of each server that could not be asked.
        servers: Those that were to be asked.
        spent: The jobs that go, by server.
        forgotten: Jobs that nobody can ask about, by id, and why: only what is known here goes.
        kept: Why jobs stay that were meant, by id.
    """

    request: CleanRequest
    items: tuple[Item, ...] = ()
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    spent: Mapping[str, Sequence[Job]] = field(default_factory=dict)
    forgotten: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def frees(self) -> int:
        """How many bytes go."""
        return sum(item.frees for item in self.items)

    @property
    def goes(self) -> int:
        """How many things go."""
        return sum(item.goes for item in self.items)


def read_items(server: str, value: object) -> list[Item]:
    """Read what a server says that it has.

    Raises:
        JobError: It is not of its form.
    """
    try:
        assert isinstance(value, list)
        return [_read_item(server, entry) for entry in value]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: cannot read its list of items ({error!r:.200})", server=server) from error


def _read_item(server: str, entry: dict[str, object]) -> Item:
    what, why = entry["what"], entry["why"]
    if not isinstance(what, str) or not isinstance(why, str) or max(len(what), len(why)) > LONGEST_WHAT:
        raise TypeError("not short text")
    numbers = [entry[name] for name in ("count", "bytes", "goes", "frees")]
    if not all(isinstance(each, int) and 0 <= each < LARGEST for each in numbers):
        raise TypeError("not a number")
    count, size, goes, frees = (int(str(each)) for each in numbers)
    return Item(server, what, count, size, goes, frees, why)
