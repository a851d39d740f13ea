"""Answer one client request: read it from stdin, write frames to stdout, exit."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from contextlib import suppress

from remote_tool.agent.requests import Request, read_request
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.framing import FramingError
from remote_tool.protocol.marks import JOB_MARKER, SUPERVISOR_MARKER

# Each operation has its own module: loading all of them would take longer than most operations.
_OPS = {
    "start": "jobs.start",
    "hold": "jobs.held",
    "settle": "jobs.held",
    "status": "jobs.status",
    "stop": "jobs.stop",
    "give_up": "jobs.give_up",
    "withdraw": "jobs.withdraw",
    "stacks": "jobs.stacks",
    "kept": "jobs.kept",
    "follow": "logs.follow",
    "run": "jobs.run",
    "shell": "jobs.run",
    "bare_shell": "jobs.run",
    "attach": "terminal.attach",
    "facts": "facts",
    "freeze": "frozen.freeze",
    "own_addresses": "facts",
    "free_gpus": "leases.report",
    "top": "top",
    "gpus": "leases.report",
    "listen": "network.reachability",
    "connect": "network.reachability",
    "share": "relay.share",
    "fetch": "relay.fetch",
    "artifacts": "artifacts.list",
    "send": "artifacts.send",
    "forward": "network.forward",
    "bandwidth_listen": "network.bandwidth",
    "bandwidth_connect": "network.bandwidth",
    "proxies": "launch.mpi_proxies",
    "clean": "cleaning.clean",
    "strays": "jobs.orphans",
    "end_strays": "jobs.orphans",
}
_NO_REQUEST = 2
# A version unused for some days may be removed.
_NOTED_SECONDS = 86400.0


def main(entry: str) -> int:
    """Answer one request; return the exit status.

    Args:
        entry: Path of the file that Python was started with.
    """
    _leave_other_job(entry)
    _note_use(os.path.dirname(entry))
    # If SIGCHLD were inherited as ignored, the kernel would drop every exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = read_request()
    if request is None:
        sys.stderr.write("remote-tool's control program: no request on stdin\n")
        return _NO_REQUEST
    try:
        return _answer(request)
    except BrokenPipeError:
        return 0


def _leave_other_job(entry: str) -> None:
    """Restart with our own marker when started inside a job, so that stopping that job does not stop us."""
    if os.environ.get(SUPERVISOR_MARKER) and JOB_MARKER not in os.environ:
        return
    environment = {name: value for name, value in os.environb.items() if name != JOB_MARKER.encode("ascii")}
    environment[SUPERVISOR_MARKER.encode("ascii")] = b"1"
    os.execve(sys.executable, [sys.executable, "-I", "-S", entry], environment)  # noqa: S606 - no shell is the point


def _note_use(folder: str) -> None:
    """Record the last use of a version in its folder's modification time, to the day."""
    with suppress(OSError):
        if time.time() - os.stat(folder).st_mtime > _NOTED_SECONDS:
            os.utime(folder)


def _answer(request: Request) -> int:
    try:
        return _carry_out(request)
    except RequestError as error:
        request.answer({"error": str(error), "hint": error.hint, **request.fields_of_errors})
    except (job_folder.FolderError, FramingError) as error:
        request.answer({"error": str(error), **request.fields_of_errors})
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        request.answer({"error": f"{what}{error.strerror}", "errno": error.errno, **request.fields_of_errors})
    return 1


def _carry_out(request: Request) -> int:
    module = _OPS.get(request.op)
    if module is None:
        raise RequestError(f"Unknown operation on this server: {request.op!r:.40}")
    operation = getattr(importlib.import_module(f"remote_tool.agent.{module}"), request.op)
    # Collect garbage from here on, but freeze what is loaded: each fork would get a copy of it.
    gc.freeze()
    gc.enable()
    # Only an attached command has an exit status of its own.
    return operation(request) or 0
