"""The terminal of a job, in its supervisor: a SIGKILL of the supervisor hangs up the job's programs."""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.agent.terminal import device
from remote_tool.agent.terminal.inside import offer_script
from remote_tool.agent.terminal.recording import Recording
from remote_tool.agent.terminal.terminal import Terminal
from remote_tool.protocol import job_folder
from remote_tool.protocol.terminal import SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan


class JobTerminal:
    """Opened before the job's command is forked; OSError when that is impossible."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._device = device.open_device()
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        self._recording = Recording(os.open(job_folder.OUT, flags, dir_fd=plan.folder))
        master = self._device.master
        self._terminal = Terminal({master: 1}, master, device=master, recording=self._recording)
        self._terminal.listen(plan.folder)
        if plan.request.command_wrapper is not None:
            offer_script(plan.path, plan.script, job_folder.TERMINAL_SCRIPT)

    def enter(self) -> None:
        """In the child, the first of its session: fork, and return in the process that becomes the command."""
        device.take(self._device.slave)
        device.lead()

    def start(self) -> None:
        """Begin to serve, once the command has been forked."""
        self._terminal.start()

    def drain(self) -> None:
        """Wait until all output is in the log."""
        self._terminal.drain()

    def finish(self, outcome: JobOutcome) -> None:
        """Remove the socket, and tell attached clients how the job ended."""
        with suppress(OSError):
            job_folder.remove(self._plan.folder, SOCKET)
            job_folder.remove(self._plan.folder, job_folder.TERMINAL_SCRIPT)
        end = outcome.end
        self._terminal.finish({"exit_code": end.exit_code, "signal": end.signal})

    @property
    def note(self) -> str:
        """Return a note about lost output, for the final record."""
        return self._recording.note
