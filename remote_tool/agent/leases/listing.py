"""The tickets, in the order of the queue, and the leases of all users of this machine."""

from __future__ import annotations

import json
import os
import time

from remote_tool.agent.leases import fifo, folders
from remote_tool.protocol import job_folder, limits, strict_json
from remote_tool.protocol.job_fields import is_count, is_seconds, is_text, is_texts
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import SCHEMA, RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

TICKET, HELD, LEASE = ".ticket", ".held", ".lease"
HIGHEST_PRIORITY = 100
# Names begin with the difference to this, so that they sort by priority, highest first.
_FIRST = 999
_STAMP_DIGITS = 20
# Of one user, and of one lease in bytes.
_MOST_LEASES = 4096
_LARGEST = 128 * 1024
NANOSECONDS = 10**9


class Ticket(NamedTuple):
    """A place in the queue.

    Attributes:
        name: The name of its file, which sorts before those of later tickets.
        uid: Its owner.
        priority: Higher is earlier.
        since: Nanoseconds since the boot.
        gpus: How many the job needs.
        job_id: The job.
    """

    name: str
    uid: int
    priority: int
    since: int
    gpus: int
    job_id: str

    @property
    def key(self) -> Tuple[str, int]:
        """Return the sort key."""
        return self.name, self.uid


class Lease(NamedTuple):
    """A lease of GPUs.

    Attributes:
        uid: Its owner.
        job_id: The job.
        name: The job's name; empty without one.
        gpus: UUIDs.
        since: Seconds since the epoch.
        stamp: Nanoseconds since the boot, taken when its pipe was visible.
        is_alive: Whether its holder is.
    """

    uid: int
    job_id: str
    name: str
    gpus: Tuple[str, ...]
    since: float
    stamp: int
    is_alive: bool

    @property
    def key(self) -> Tuple[int, int, str]:
        """Return the key that decides between two leases of a GPU: the lower one is kept."""
        return self.stamp, self.uid, self.job_id


class Ignored(NamedTuple):
    """A file of another user that does not fit its name."""

    uid: int
    name: str
    why: str


class LeaseListing:
    """One look at the folders of all users; to be closed.

    Attributes:
        tickets: In the order of the queue, those of dead jobs too.
        leases: Those of dead jobs too.
        undecided: Owner and job of each process that is about to publish a lease.
        ignored: What cannot be read.
    """

    def __init__(self, only: Optional[int] = None, pool: str = "") -> None:
        """Look.

        Args:
            only: The one user to look at; None for all.
            pool: The folder of leases of something else, of this user; empty: those of GPUs.
        """
        self.tickets: List[Ticket] = []
        self.leases: List[Lease] = []
        self.undecided: List[Tuple[int, str]] = []
        self.ignored: List[Ignored] = []
        found = folders.list_pool(pool) if pool else folders.open_all(only)
        self._folders = {each.uid: each.descriptor for each in found}
        try:
            for each in found:
                self._read(each)
        except OSError:
            self.close()
            raise
        self.tickets.sort(key=_key)

    def close(self) -> None:
        """Close the folders."""
        for folder in self._folders.values():
            os.close(folder)
        self._folders = {}

    def __enter__(self) -> LeaseListing:  # noqa: PYI034 - Self is newer than Python 3.8
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch_ticket(self, ticket: Ticket) -> Optional[int]:
        """Return a descriptor on which poll() reports the ticket's end; None if its job is dead."""
        folder = self._folders.get(ticket.uid)
        return None if folder is None else fifo.watch(folder, ticket.name, ticket.uid)

    def watch_lease(self, lease: Lease) -> Optional[int]:
        """Return a descriptor on which poll() reports the lease's end; None if its job is dead."""
        folder = self._folders.get(lease.uid)
        return None if folder is None else fifo.watch(folder, f"{lease.job_id}{HELD}", lease.uid)

    def is_alive(self, ticket: Ticket) -> bool:
        """Return whether the job of a ticket waits."""
        folder = self._folders.get(ticket.uid)
        return folder is not None and fifo.is_held(folder, ticket.name, ticket.uid)

    def live_leases(self) -> List[Lease]:
        """Return the leases of living holders."""
        return [lease for lease in self.leases if lease.is_alive]

    def _read(self, folder: folders.FolderOfUser) -> None:
        count = 0
        for name in folder.names:
            if name.endswith(TICKET):
                ticket = parse_ticket(name, folder.uid)
                if ticket is not None:
                    self.tickets.append(ticket)
            elif name.endswith(HELD) and count < _MOST_LEASES:
                count += 1
                self._read_lease(folder, name[: -len(HELD)])
        if folder.is_cut or count >= _MOST_LEASES:
            self.ignored.append(Ignored(folder.uid, "", "has more files than jobs can have"))

    def _read_lease(self, folder: folders.FolderOfUser, job_id: str) -> None:
        if not is_job_id(job_id):
            return
        # First the pipe: it is there before the lease, and goes after it.
        is_alive = fifo.is_held(folder.descriptor, f"{job_id}{HELD}", folder.uid)
        try:
            text = job_folder.read_bytes(folder.descriptor, f"{job_id}{LEASE}", _LARGEST)
            lease = None if text is None else _parse_lease(text, folder.uid, job_id, is_alive=is_alive)
        except RecordError as error:
            self.ignored.append(Ignored(folder.uid, f"{job_id}{LEASE}", str(error)))
            return
        except OSError as error:
            # Its owner can do much to it: set a mode, or a lease of the kernel (F_SETLEASE).
            if error.errno in folders.NO_MEANS:
                raise
            self.ignored.append(Ignored(folder.uid, f"{job_id}{LEASE}", str(error.strerror)))
            return
        if lease is not None:
            self.leases.append(lease)
        elif is_alive:
            self.undecided.append((folder.uid, job_id))


def parse_ticket(name: str, uid: int) -> Optional[Ticket]:
    """Return the ticket of a name; None if it is not one."""
    parts = name[: -len(TICKET)].split(".", 3)
    numbers, job_id = parts[:-1], parts[-1]
    if len(parts) != 4 or not is_job_id(job_id) or not all(_is_number(part) for part in numbers):  # noqa: PLR2004
        return None
    priority, since, gpus = _FIRST - int(numbers[0]), int(numbers[1]), int(numbers[2])
    ticket = Ticket(name, uid, priority, since, gpus, job_id)
    is_valid = 0 <= priority <= HIGHEST_PRIORITY and 1 <= gpus <= limits.MOST_GPUS
    return ticket if is_valid and name == name_ticket(ticket) else None


def name_ticket(ticket: Ticket) -> str:
    """Return the name of a ticket's file."""
    return f"{_FIRST - ticket.priority:03}.{ticket.since:0{_STAMP_DIGITS}}.{ticket.gpus}.{ticket.job_id}{TICKET}"


def now_stamp() -> int:
    """Return nanoseconds since the boot, suspended time included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def lease_as_json(lease: Lease) -> bytes:
    """Return the contents of a lease's file."""
    fields = {"schema": SCHEMA, "job_id": lease.job_id, "name": lease.name, "gpus": list(lease.gpus)}
    fields.update(since=lease.since, stamp=lease.stamp, boot_id=boot_id())
    return strict_json.encode(fields) + b"\n"


def boot_id() -> str:
    """Return the id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def _parse_lease(text: bytes, uid: int, job_id: str, *, is_alive: bool) -> Optional[Lease]:
    """Return a lease; None for one of an earlier boot, which holds nothing."""
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError("is not valid JSON") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or found.get("job_id") != job_id:
        raise RecordError("is not the lease of its job")
    _check(found)
    if not is_alive and found["boot_id"] != boot_id():
        return None
    return Lease(uid, job_id, found["name"], tuple(found["gpus"]), found["since"], found["stamp"], is_alive)


def _check(found: Dict[str, Any]) -> None:
    checks = {
        "name": is_text(found.get("name")) and len(found["name"]) <= limits.LONGEST_NAME,
        "gpus": is_texts(found.get("gpus")) and all(0 < len(gpu) <= limits.LONGEST_GPU for gpu in found["gpus"]),
        "since": is_seconds(found.get("since")),
        "stamp": is_count(found.get("stamp"), NANOSECONDS * limits.LATEST_MOMENT),
        "boot_id": is_text(found.get("boot_id")),
    }
    for name, is_valid in checks.items():
        if not is_valid:
            raise RecordError(f"its {name} is not valid")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _key(ticket: Ticket) -> Tuple[str, int]:
    return ticket.key
