"""Errors of this machine, such as a full or read-only disk, or a folder of another user."""

from __future__ import annotations

import errno
import os

from remote_tool.cli.output import streams
from remote_tool.errors import MOST_FILES, RemoteToolError

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_RIGHTS = {errno.EACCES, errno.EPERM}
_NO_TEMPORARY_FILE = "No usable temporary directory"


def explain(problem: OSError | ImportError) -> RemoteToolError | None:
    """Return an error for a problem that the user can fix; None for a bug."""
    if _is_too_many_files(problem):
        return RemoteToolError("Too many files are open for this number of servers", hint=f"ulimit -n {MOST_FILES}")
    return None if isinstance(problem, ImportError) else _explain_file(problem)


def _explain_file(problem: OSError) -> RemoteToolError | None:
    if _NO_TEMPORARY_FILE in str(problem):
        # The module tempfile drops the cause.
        message = "Cannot create a temporary file: too many files are open, or the disk is full"
        return RemoteToolError(message, hint=f"ulimit -n {MOST_FILES}, or TMPDIR=FOLDER for a folder on another disk")
    place = os.fsdecode(problem.filename) if isinstance(problem.filename, str | bytes) else ""
    if problem.errno == errno.EBADF and streams.OUT in streams.closed_at_start:
        return RemoteToolError("Cannot write: standard output is closed", hint="To discard the output: >/dev/null")
    if problem.errno in _DISK:
        return RemoteToolError(f"Cannot write{place and f' {place}'}: {problem.strerror}", hint="df -h .")
    if problem.errno in _RIGHTS and place:
        return RemoteToolError(f"Cannot use {place}: {problem.strerror}", hint=f"ls -ld {place}")
    return None


def _is_too_many_files(problem: OSError | ImportError) -> bool:
    if isinstance(problem, ImportError):
        # The dynamic linker reports an extension module that it cannot open by text alone.
        return os.strerror(errno.EMFILE) in str(problem)
    return problem.errno == errno.EMFILE
