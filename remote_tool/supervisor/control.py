"""What a client calls: one request on stdin, its answers as frames on stdout, then the end."""

from __future__ import annotations

import gc
import os
import sys

from . import job_files
from .framing import FramingError
from .processes import JOB_MARKER, SUPERVISOR_MARKER
from .requests import Request, RequestError, read_request
from .signals import signal

# Each in a module of its own, of which one is loaded: to load all takes longer than most of them do.
_OPS = {
    "start": "starting",
    "status": "status",
    "stop": "stopping",
    "follow": "follow",
    "run": "attached",
    "facts": "facts",
    "listen": "network",
    "connect": "network",
    "share": "relay_share",
    "fetch": "relay_fetch",
    "artifacts": "artifacts",
    "send": "sending",
    "bandwidth_listen": "bandwidth",
    "bandwidth_connect": "bandwidth",
    "proxies": "proxies",
    "strays": "strays",
    "end_strays": "strays",
}
_NO_REQUEST = 2


def main(entry: str) -> int:
    """Answer one request; returns the exit status.

    Args:
        entry: Path of the file that Python was started with.
    """
    _leave_other_job(entry)
    # Inherited as ignored it would make the kernel drop every exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = read_request()
    if request is None:
        sys.stderr.write("remote-tool's control program: no request came on stdin\n")
        return _NO_REQUEST
    try:
        return _answer(request)
    except BrokenPipeError:
        return 0


def _leave_other_job(entry: str) -> None:
    """Start again with our own marks when this was started inside a job: ending that job must not end ours."""
    if os.environ.get(SUPERVISOR_MARKER) and JOB_MARKER not in os.environ:
        return
    environment = {name: value for name, value in os.environb.items() if name != JOB_MARKER.encode("ascii")}
    environment[SUPERVISOR_MARKER.encode("ascii")] = b"1"
    os.execve(sys.executable, [sys.executable, "-I", "-S", entry], environment)  # noqa: S606 - no shell is the point


def _answer(request: Request) -> int:
    try:
        return _carry_out(request)
    except RequestError as error:
        request.answer({"error": str(error), "hint": error.hint})
    except (job_files.FolderError, FramingError) as error:
        request.answer({"error": str(error)})
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        request.answer({"error": f"{what}{error.strerror}", "errno": error.errno})
    return 1


def _carry_out(request: Request) -> int:
    module = _OPS.get(request.op)
    if module is None:
        raise RequestError(f"This server's control program does not know {request.op!r:.40}")
    # As importlib does it, which takes as long to load as a short answer's own module.
    operation = getattr(__import__(module, globals(), fromlist=[request.op], level=1), request.op)
    # From now on garbage is looked for, but not in what is loaded: each fork would get a copy of it all.
    gc.freeze()
    gc.enable()
    # Only a command that was run has a status of its own.
    return operation(request) or 0
