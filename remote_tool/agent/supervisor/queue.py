"""A supervisor's wait before its command: for other jobs to end, and for GPUs or a slot of its own."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

from remote_tool.agent.leases import fifo, folders
from remote_tool.agent.leases.folders import LeaseError
from remote_tool.agent.leases.listing import now_stamp
from remote_tool.agent.leases.queued_file import write_queued
from remote_tool.agent.leases.slots import Slots, SlotWaiter, pool_of
from remote_tool.agent.leases.waiter import CHECK_SECONDS, DEFAULT_IDLE_AFTER, LeaseRequest, LeaseWaiter
from remote_tool.agent.requests import is_flag
from remote_tool.agent.supervisor import after
from remote_tool.agent.supervisor.command import NOT_STARTED
from remote_tool.agent.supervisor.plan import QueueRequest
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.protocol.marks import GPUS_LINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Optional, Tuple

    from remote_tool.agent.leases.claim import Claim
    from remote_tool.agent.supervisor.events import Events
    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan
    from remote_tool.protocol.records import Record

VISIBLE = b"CUDA_VISIBLE_DEVICES"
# A job that may not wait bears this: another one may be about to get its GPUs, and leave enough.
_GIVE_UP_SECONDS = 2.0
# The start answers that the job waits, at the latest after this time.
_TELL_SECONDS = 3.0
# Others may make and remove files as fast as they like; this process looks no faster.
_QUICK_STEPS, _QUICK_SECONDS = 20, 0.5


def read_queue(job: Mapping[str, Any], spec: Record) -> QueueRequest:
    """Read the conditions under which a requested job may start.

    Raises:
        RequestError: The request is malformed.
    """
    slots = spec["slots"]
    if slots is not None and (not slots or spec["gpu_count"] or not spec["launch_id"]):
        raise RequestError(f"Job {spec['id']}: slots need a sweep without GPUs, found {slots!r:.40}")
    may_wait, idle_after = job.get("waits", True), job.get("idle_after", DEFAULT_IDLE_AFTER)
    if not is_flag(may_wait) or not is_seconds(idle_after):
        raise RequestError(f"Job {spec['id']}: it cannot wait as requested: {may_wait!r:.40}, {idle_after!r:.40}")
    lease = LeaseRequest(
        job_id=spec["id"],
        name=spec["name"] or "",
        gpus=spec["gpu_count"] or 1,
        priority=spec["priority"] or 0,
        backfill=bool(spec["backfill"]),
        devices=tuple(spec["gpus"] or ()),
        idle_after=idle_after,
        # Jobs of one request start in its order, whichever of their supervisors is first. Others wait for jobs first.
        since=0 if spec["after"] else now_stamp(),
    )
    after_ids = tuple(spec["after"] or ())
    lease_request = lease if spec["gpu_count"] or slots else None
    return QueueRequest(lease_request, after_ids, bool(spec["after_any"]), may_wait, slots or 0, spec["launch_id"])


def with_gpus(plan: Plan, gpus: Tuple[str, ...]) -> Plan:
    """Return a plan for a command that sees these GPUs only."""
    names = ",".join(gpus).encode("utf-8", "surrogateescape")
    script = (
        plan.script.replace(*_filled(plan.script, names)) if plan.request.command_wrapper is not None else plan.script
    )
    return plan._replace(environment={**plan.environment, VISIBLE: names}, script=script)


def _filled(script: bytes, names: bytes) -> Tuple[bytes, bytes, int]:
    """Return the placeholder in a script, and its replacement of the same number of bytes."""
    # Variables of the user come before it.
    start = script.rindex(GPUS_LINE)
    placeholder = script[start : script.index(b"\n", start)]
    line = b"export %s='%s' #" % (VISIBLE, names.replace(b"'", b""))
    return placeholder, line.ljust(len(placeholder), b"#"), 1


class JobQueue:
    """The wait of one job, and its lease.

    Attributes:
        gpus: The UUIDs of its GPUs.
    """

    def __init__(self, plan: Plan, events: Events, outcome: JobOutcome, report: Callable[[], None]) -> None:
        """Initialize.

        Args:
            plan: The job.
            events: The supervisor's events.
            outcome: Receives why the command cannot start.
            report: Tells the start that the job waits.
        """
        assert plan.request.queue is not None
        self._plan = plan
        self._request = plan.request.queue
        self._events = events
        self._outcome = outcome
        self._report = report
        # One that may not wait is decided soon, and the start answers that.
        self._report_at: Optional[float] = time.monotonic() + _TELL_SECONDS if plan.request.queue.may_wait else None
        self._written: Optional[str] = None
        self._privacy = "" if plan.request.queue.lease is None or plan.request.queue.slots else folders.find_privacy()
        self._claim: Optional[Claim] = None
        self._refreshed_at = time.monotonic()
        self._quick = 0
        self.gpus: Tuple[str, ...] = ()

    def wait(self) -> bool:
        """Wait until the command may start; return False, with the reason recorded, if it never may."""
        with suppress(OSError):
            self._write_reason("")
        if self._request.after:
            # Others must not wait for the place that it has later.
            for descriptor in self._request.arrivals:
                os.close(descriptor)
        wakeup = self._events.listen()
        fifo.shrink(wakeup)
        try:
            return self._wait_for_jobs(wakeup) and (self._request.lease is None or self._wait_for_lease(wakeup))
        except LeaseError as error:
            self._outcome.notes.append(f"{NOT_STARTED}: {error}")
            return False
        except OSError as error:
            self._outcome.notes.append(f"{NOT_STARTED}: {job_folder.explain(folders.base(), error)}")
            return False
        finally:
            self._events.stop_listening()

    def release(self) -> None:
        """Give the GPUs back if nothing uses them any more; otherwise others see that nobody looks after them."""
        claim, self._claim = self._claim, None
        if claim is not None and self._outcome.unkillable:
            claim.let_die()
        elif claim is not None:
            claim.release()
            if self._request.slots:
                folders.remove_pool(pool_of(self._request.sweep))

    def refresh_if_due(self) -> None:
        """Keep the files of the lease from being removed as old, and make them again if somebody removed them."""
        with suppress(OSError):
            if self._claim is not None:
                self._claim.publish_again_if_removed()
        if self._claim is not None and time.monotonic() - self._refreshed_at > folders.REFRESH_SECONDS:
            self._refreshed_at = time.monotonic()
            self._claim.refresh()

    def _wait_for_jobs(self, wakeup: int) -> bool:
        ids, after_any = self._request.after, self._request.after_any
        jobs = after.EarlierJobs(os.path.dirname(self._plan.path), ids, may_be_new=after_any)
        while True:
            left, failed = jobs.look()
            if failed and not after_any:
                self._outcome.notes.append(f"{NOT_STARTED}: {failed}")
                return False
            if not left:
                return True
            self._report_wait(f"waits for the end of {left}")
            if self._is_stopped():
                return False
            with jobs.watch() as watched:
                self._poll(wakeup, watched, jobs.seconds)

    def _wait_for_lease(self, wakeup: int) -> bool:
        assert self._request.lease is not None
        lease = self._request.lease
        waiter = self._new_waiter(lease)
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        try:
            while not self._is_stopped():
                self._claim = waiter.step()
                if self._claim is not None:
                    self.gpus = () if self._request.slots else self._claim.lease.gpus
                    return True
                if waiter.is_waiting and not self._request.may_wait and time.monotonic() > give_up:
                    raise LeaseError(f"it needs {lease.gpus} free GPU{'s' * (lease.gpus > 1)} now{waiter.blocked_by()}")
                if waiter.is_waiting:
                    self._report_wait(waiter.why)
                self._poll_waiter(wakeup, waiter)
            return False
        finally:
            waiter.close()

    def _new_waiter(self, lease: LeaseRequest) -> LeaseWaiter:
        if not self._request.slots:
            return LeaseWaiter(lease)
        jobs = os.path.dirname(self._plan.path)
        slots = Slots(self._request.sweep, self._request.slots, lambda ids: after.find_left(jobs, ids))
        return SlotWaiter(lease, slots, () if self._request.after else self._request.arrivals)

    def _poll_waiter(self, wakeup: int, waiter: LeaseWaiter) -> None:
        poll = select.poll()
        waiter.register(poll)
        seconds = waiter.seconds if self._request.may_wait else min(waiter.seconds, _QUICK_SECONDS)
        due = time.monotonic() + seconds
        while not self._poll(wakeup, poll, min(CHECK_SECONDS, max(0.0, due - time.monotonic()))):
            # Another step would read the whole queue.
            if time.monotonic() >= due or not waiter.is_in_queue() or self._events.is_asked_to_end():
                return

    def _poll(self, wakeup: int, poll: select.poll, seconds: float) -> bool:
        """Wait for an event; return whether there was one."""
        poll.register(wakeup, select.POLLIN)
        if self._report_at is not None:
            seconds = min(seconds, max(0.0, self._report_at - time.monotonic()))
        began = time.monotonic()
        events = poll.poll(seconds * 1000)
        with suppress(BlockingIOError):
            os.read(wakeup, 4096)
        self._slow_down(time.monotonic() - began)
        if self._report_at is not None and time.monotonic() >= self._report_at:
            self._report_wait("")
        return bool(events)

    def _slow_down(self, waited: float) -> None:
        """Bound the number of looks, however fast others make and remove files."""
        self._quick = self._quick + 1 if waited < _QUICK_SECONDS else 0
        if self._quick > _QUICK_STEPS:
            time.sleep(_QUICK_SECONDS)

    def _is_stopped(self) -> bool:
        if self._events.read_stop() is not None:
            self._outcome.notes.append("it was killed before its command started")
        else:
            # Only here, while it waits: whoever asks later finds it begun.
            self._outcome.moved = self._events.read_withdrawal()
            if not self._outcome.moved:
                return False
            # Clients know the job by its key.
            self._outcome.notes.append("moved to {moved_to}, as job {moved_as}".format(**self._outcome.moved))
        self._outcome.killed = True
        return True

    def _report_wait(self, why: str) -> None:
        """Let others see why it waits."""
        with suppress(OSError):
            self._write_reason("; ".join(part for part in (why, self._privacy) if part))
        if self._report_at is not None:
            self._report_at = None
            self._report()

    def _write_reason(self, why: str) -> None:
        if why != self._written:
            write_queued(self._plan.folder, why)
            self._written = why
