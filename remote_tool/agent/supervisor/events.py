"""Events of a supervisor: signals, the end of its children, and stop requests."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from remote_tool.agent.supervisor.log_limit import LogLimit
from remote_tool.protocol import job_folder
from remote_tool.protocol.records import STOP, WITHDRAW, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan

# A stop request is in stop.json and comes with SIGUSR1; this interval covers a sender that died in between.
_IDLE_SECONDS = 10.0
_SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WAKING = _SIGNALS - {signal.SIGCHLD}
# On a full disk stop.json cannot be written, and the signal itself is the request.
_REQUESTS: Dict[int, str] = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGTERM", signal.SIGUSR2: "SIGKILL"}


class Events:
    """Waits for events, and keeps the output within its limit."""

    def __init__(self, plan: Plan, outcome: JobOutcome) -> None:
        self._plan = plan
        self._outcome = outcome
        self._requested = ""
        self._wakeup = self._waker = -1
        self._log_limit = LogLimit(plan.folder, plan.request.log_limit)

    @property
    def log_note(self) -> str:
        """Return a note about dropped output, for the final record."""
        return self._log_limit.note

    @staticmethod
    def block_signals() -> None:
        """Block signals until they are waited for."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def listen(self) -> int:
        """Let signals wake poll() through the descriptor that is returned, which then has bytes to read."""
        self._wakeup, self._waker = os.pipe()
        for descriptor in (self._wakeup, self._waker):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in _WAKING:
            signal.signal(number, self._note_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAKING)
        return self._wakeup

    def stop_listening(self) -> None:
        """Block signals again."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
        signal.set_wakeup_fd(-1)
        for number in _WAKING:
            signal.signal(number, signal.SIG_DFL)
        os.close(self._wakeup)
        os.close(self._waker)

    def _note_signal(self, number: int, _frame: object) -> None:
        self._requested = _REQUESTS.get(number, self._requested)

    def wait(self) -> None:
        """Wait for the next event."""
        self.pause(min(_IDLE_SECONDS, self._log_limit.seconds))

    def pause(self, seconds: float) -> None:
        """Wait for a signal up to a timeout, then reap children."""
        try:
            received = signal.sigtimedwait(_SIGNALS, seconds)
        except InterruptedError:
            received = None
        if received is not None and received.si_signo in _REQUESTS:
            self._requested = _REQUESTS[received.si_signo]
        self.reap()
        self._log_limit.check_if_due()

    def reap(self) -> bool:
        """Reap children that have ended; return whether another one is alive."""
        outcome = self._outcome
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            # An orphan that is reaped later may have got the same pid.
            if outcome.status is None and outcome.command is not None and pid == outcome.command.pid:
                outcome.status = status
                # Now: scanning for leftovers may take long on a busy machine.
                outcome.ended = time.time(), time.monotonic()

    def read_stop(self) -> Optional[Mapping[str, Any]]:
        """Return the stop request, if any."""
        request = None
        try:
            request = job_folder.read_record(self._plan.folder, STOP, self._plan.job_id)
        except (RecordError, OSError):
            # An unreadable request still asks for a stop; a disk that does not answer does not.
            with suppress(OSError):
                if job_folder.exists(self._plan.folder, STOP):
                    request = {"signal": "SIGTERM", "grace": self._plan.spec["grace"]}
        if self._requested and (request is None or self._requested == "SIGKILL"):
            return {"signal": self._requested, "grace": self._plan.spec["grace"], "by_signal": True}
        return request

    def read_withdrawal(self) -> Dict[str, str]:
        """Return the job that is to take the place of one that waits, on another server; empty if it is to stay."""
        record = None
        with suppress(RecordError, OSError):
            record = job_folder.read_record(self._plan.folder, WITHDRAW, self._plan.job_id)
        return {} if record is None else {name: record[name] for name in ("moved_to", "moved_as", "moved_copy")}

    def is_asked_to_end(self) -> bool:
        """Return whether a job that waits is to be stopped or moved."""
        return self.read_stop() is not None or bool(self.read_withdrawal())

    def must_hurry(self) -> bool:
        """Return whether SIGKILL is requested."""
        request = self.read_stop()
        return request is not None and request["signal"] == "SIGKILL"
