"""Publish a ticket or a lease, and decide between leases of the same GPU without a lock.

A process that wants GPUs makes its pipe visible, takes a time stamp, publishes its lease, and lists all leases after
that. Of two that overlap, the one with the lower stamp is kept and the other withdraws. If one of them does not see the
pipe of the other, that one became visible after the listing, so it has a higher stamp and does see the first. A pipe
that is visible without a lease has a stamp that nobody knows yet, and is waited for.

So only pipes of the first listing can be older. A later one that claims to be older is wrong or hostile.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from remote_tool.agent.leases import fifo, folders
from remote_tool.agent.leases.listing import (
    HELD,
    LEASE,
    Lease,
    LeaseListing,
    Ticket,
    lease_as_json,
    name_ticket,
    now_stamp,
)
from remote_tool.protocol import job_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Set, Tuple

# A lease that took longer to publish is withdrawn; a pipe without a lease is waited for longer than that.
_PUBLISH_NANOSECONDS = 5 * 10**9
UNDECIDED_NANOSECONDS = 10 * 10**9


class TakenTicket:
    """This process's place in the queue."""

    def __init__(self, folder: int, ticket: Ticket, pool: str = "") -> None:
        """Take it; OSError when that is impossible."""
        self._folder = folder
        self._pool = pool
        self.ticket = ticket._replace(name=name_ticket(ticket))
        self._pipe = fifo.hold(folder, self.ticket.name)

    def is_there(self) -> bool:
        """Return whether others see it: an administrator may have removed it."""
        return folders.is_own(self.ticket.name, self._pipe, self._pool)

    def refresh(self) -> None:
        """Keep the file from being removed as old."""
        folders.refresh(self._folder, [self.ticket.name])

    def release(self) -> None:
        """Leave the queue: the next one notices at once."""
        with suppress(OSError):
            os.unlink(self.ticket.name, dir_fd=self._folder)
        fifo.let_go(self._pipe)


class Claim:
    """This process's lease: published, and kept or withdrawn.

    Attributes:
        lease: The published lease.
    """

    def __init__(self, folder: int, job_id: str, name: str, gpus: Tuple[str, ...], pool: str = "") -> None:
        """Publish it; OSError when that is impossible."""
        before = now_stamp()
        self._pool = pool
        self._pipe = fifo.hold(folder, f"{job_id}{HELD}")
        # The caller may close its own.
        self._folder = os.dup(folder)
        # Not before the pipe is visible.
        self.lease = Lease(os.geteuid(), job_id, name, gpus, time.time(), now_stamp(), is_alive=True)
        try:
            self._publish()
        except OSError:
            self.release()
            raise
        # Those who saw the pipe alone for long have stopped waiting for this.
        self._is_late = now_stamp() - before > _PUBLISH_NANOSECONDS
        self._present: Optional[Set[Tuple[int, str]]] = None
        self._listed_at = 0

    def refresh(self) -> None:
        """Keep the files from being removed as old."""
        folders.refresh(self._folder, [f"{self.lease.job_id}{HELD}", f"{self.lease.job_id}{LEASE}"])

    def publish_again_if_removed(self) -> None:
        """Let others see it again, should an administrator have removed it; OSError when that is impossible now."""
        is_held = folders.is_own(f"{self.lease.job_id}{HELD}", self._pipe, self._pool)
        if is_held and job_folder.exists(self._folder, f"{self.lease.job_id}{LEASE}"):
            return
        if not is_held:
            folder = folders.open_own(self._pool)
            try:
                pipe = fifo.hold(folder, f"{self.lease.job_id}{HELD}")
            except OSError:
                os.close(folder)
                raise
            self.let_die()
            self._folder, self._pipe = folder, pipe
        self._publish()

    def find_rivals(self, listing: LeaseListing) -> List[Lease]:
        """Return the leases, in a listing made after this one was published, that are kept in its place."""
        if self._is_late:
            return [self.lease]
        live = listing.live_leases()
        if self._present is None:
            self._present = {*listing.undecided, *((lease.uid, lease.job_id) for lease in live)}
            self._listed_at = now_stamp()
        mine = set(self.lease.gpus)
        others = [lease for lease in live if (lease.uid, lease.job_id) in self._present]
        return [lease for lease in others if lease.key < self.lease.key and mine.intersection(lease.gpus)]

    def find_undecided(self, listing: LeaseListing) -> Tuple[Optional[Tuple[int, str]], int]:
        """Return a process that is about to publish a lease which may be older, and for how long this has waited."""
        waited = now_stamp() - self._listed_at
        own = self.lease.uid, self.lease.job_id
        others = [each for each in listing.undecided if each != own and each in (self._present or ())]
        return others[0] if others and waited < UNDECIDED_NANOSECONDS else None, waited

    def release(self) -> None:
        """Give the GPUs back: nothing uses them any more."""
        remove_lease(self._folder, self.lease.job_id)
        self.let_die()

    def let_die(self) -> None:
        """Show others that nobody looks after the GPUs, which may still be in use."""
        if self._pipe >= 0:
            fifo.let_go(self._pipe)
            os.close(self._folder)
            self._pipe = -1

    def _publish(self) -> None:
        temporary = f"{fifo.TEMPORARY}{os.urandom(8).hex()}"
        try:
            file = job_folder.create_file(self._folder, temporary)
            try:
                os.fchmod(file, 0o644)
                job_folder.write_all(file, lease_as_json(self.lease))
            finally:
                os.close(file)
            os.rename(temporary, f"{self.lease.job_id}{LEASE}", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            with suppress(OSError):
                job_folder.remove(self._folder, temporary)
            raise


def remove_lease(folder: int, job_id: str) -> None:
    """Remove the files of a lease, first the one that names its GPUs."""
    with suppress(OSError):
        job_folder.remove(folder, f"{job_id}{LEASE}")
        job_folder.remove(folder, f"{job_id}{HELD}")
