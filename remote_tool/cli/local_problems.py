"""What this machine itself can refuse, in words: a full or read-only disk, a folder of somebody else."""

from __future__ import annotations

import errno
import os

from remote_tool.errors import RemoteToolError

# macOS allows 10,240.
MOST_FILES = 8192
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_RIGHTS = {errno.EACCES, errno.EPERM}


def explain(problem: OSError) -> RemoteToolError | None:
    """Return an error for what the user can mend; None for anything else, which is a bug."""
    place = os.fsdecode(problem.filename) if isinstance(problem.filename, str | bytes) else ""
    if problem.errno == errno.EMFILE:
        return RemoteToolError("Too many files are open for this number of servers", hint=f"ulimit -n {MOST_FILES}")
    if problem.errno in _DISK:
        return RemoteToolError(f"Cannot write{place and f' {place}'}: {problem.strerror}", hint="df -h .")
    if problem.errno in _RIGHTS and place:
        return RemoteToolError(f"Cannot use {place}: {problem.strerror}", hint=f"ls -ld {place}")
    return None
