"""The request and the result of a clean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job

_LONGEST_WHAT, _LONGEST_WHY = 100, 1000
LARGEST = 2**62


@dataclass(frozen=True)
class CleanItem:
    """Our files of one kind, on one machine.

    Attributes:
        server: The server; empty: this machine.
        what: The kind.
        count: The number of files.
        bytes: Their size.
        goes: The number of files to remove.
        frees: The size of the files to remove.
        why: The reason for keeping the others, or empty.
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
    """A choice of jobs and files that may be removed.

    Attributes:
        servers: Names; empty: all.
        older: Only jobs that ended at least this many seconds ago, and notes of that age.
        keep: The number of jobs to keep on each server, the newest.
        jobs: Keys or ids: only these jobs, including those that their servers no longer have.
        artifacts: Whether pulled artifacts are removed too, with their jobs.
        all: Whether all files of ours are removed, which leaves the servers as they were before.
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
    """The files of ours that exist, and those to remove, or that were removed.

    Attributes:
        request: The request.
        items: The kinds of files, on each server and here.
        errors: The error of each server that could not be asked.
        servers: The selected servers.
        removable: The jobs to remove, by server.
        forgotten: The reason for each job of which only the local record is removed, by id.
        kept: The reason for each selected job that is kept, by id.
    """

    request: CleanRequest
    items: tuple[CleanItem, ...] = ()
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    removable: Mapping[str, Sequence[Job]] = field(default_factory=dict)
    forgotten: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def frees(self) -> int:
        """Return the bytes to free."""
        return sum(item.frees for item in self.items)

    @property
    def goes(self) -> int:
        """Return the number of files and jobs to remove."""
        return sum(item.goes for item in self.items)


def read_items(server: str, value: object) -> list[CleanItem]:
    """Parse a server's list.

    Raises:
        JobError: It is malformed.
    """
    try:
        assert isinstance(value, list)
        return [_read_item(server, entry) for entry in value]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: cannot read its list of items ({error!r:.200})", server=server) from error


def _read_item(server: str, entry: dict[str, object]) -> CleanItem:
    what, why = entry["what"], entry["why"]
    if not isinstance(what, str) or len(what) > _LONGEST_WHAT or not isinstance(why, str) or len(why) > _LONGEST_WHY:
        raise TypeError("not short text")
    numbers = [entry[name] for name in ("count", "bytes", "goes", "frees")]
    if not all(isinstance(each, int) and 0 <= each < LARGEST for each in numbers):
        raise TypeError("not a number")
    count, size, goes, frees = (int(str(each)) for each in numbers)
    return CleanItem(server, what, count, size, goes, frees, why)
