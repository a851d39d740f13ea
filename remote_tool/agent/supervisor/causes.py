"""Explain the failure of a command beyond its exit code: the setup script, a port in use, or an error of a rank."""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.agent.launch.cause import Membership, find_rank_error
from remote_tool.agent.supervisor.shell import decode_status, describe_end
from remote_tool.protocol import job_folder
from remote_tool.protocol.records import RecordError
from remote_tool.protocol.setup_script import DONE, FILE, describe_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan

_NO_SPACE = ("No space left on device", "Disk quota exceeded")
_END = 16 * 1024
_TAIL = 64 * 1024
_COMMAND_LIMIT = 1024 * 1024
_CANNOT_LISTEN = b"failed to listen on any local network address. port: "
_IN_USE = b" EADDRINUSE"


def note_failed_setup(plan: Plan, outcome: JobOutcome) -> None:
    """Record that the setup script is why the command did not run."""
    if outcome.was_stopped or outcome.never_began:
        return
    # A disk that does not answer now proves nothing.
    with suppress(OSError):
        outcome.setup_failed = job_folder.exists(plan.folder, FILE) and not job_folder.exists(plan.folder, DONE)
    if outcome.setup_failed:
        outcome.notes.insert(0, describe_failure(describe_end(decode_status(outcome.status))))


def note_taken_port(plan: Plan, outcome: JobOutcome) -> None:
    """Record a port conflict: the port was free during planning, and torchrun opened it seconds later."""
    if outcome.was_stopped or outcome.end.exit_code in {None, 0}:
        return
    # For a launch without torchrun.
    own = plan.environment.get(b"MASTER_PORT", b"")
    outcome.taken_port = find_taken_port(plan.folder, own)
    if outcome.taken_port is not None:
        is_torchrun = not own and b"torch.distributed.run" in plan.request.command.encode("utf-8", "replace")
        who = "torchrun" if is_torchrun else "the launch"
        outcome.notes.append(f"another program took port {outcome.taken_port} before {who} could listen on it")


def note_full_disk(plan: Plan, outcome: JobOutcome) -> None:
    """Record that the disk is full, or that the output of a failed command says so."""
    if outcome.was_stopped:
        return
    if job_folder.is_full(plan.folder) or job_folder.is_full(plan.workdir):
        outcome.notes.append("the project's disk is full")
        return
    if outcome.end.exit_code in {None, 0} or any(text in note for text in _NO_SPACE for note in outcome.notes):
        return
    # The command may have removed what filled the disk.
    for name in (job_folder.ERR, job_folder.OUT):
        end = _end_of(plan.folder, name)
        for text in _NO_SPACE:
            if text.encode("ascii") in end:
                outcome.notes.append(f"its output says: {text}")
                return


def _end_of(folder: int, name: str) -> bytes:
    with suppress(OSError):
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.lseek(file, max(0, os.fstat(file).st_size - _END), os.SEEK_SET)
            return os.read(file, _END)
        finally:
            os.close(file)
    return b""


def note_rank_error(plan: Plan, outcome: JobOutcome) -> None:
    """Record the error that a rank of torchrun reported."""
    place = plan.request.membership or Membership(0, ("",), "", 0, b"", 0, hidden=plan.request.hidden)
    with suppress(OSError):
        if job_folder.exists(plan.folder, job_folder.RANKS):
            error = find_rank_error(plan.folder, place, has_ended=True)
            outcome.notes.append("" if error is None else error.what)


def find_taken_port(folder: int, own: bytes = b"") -> Optional[int]:
    """Return the port on which a job's torchrun could not listen; None if it ended for another reason.

    Args:
        folder: Descriptor of the job's folder.
        own: The port of a launch without torchrun, whose command does not name it.
    """
    try:
        lines = _tail(folder, job_folder.ERR).split(b"\n")
        command = job_folder.read_bytes(folder, job_folder.COMMAND, _COMMAND_LIMIT) or b""
    except (OSError, RecordError):
        return None
    for line in lines:
        port, _, rest = line.partition(_CANNOT_LISTEN)[2].partition(b",")
        if port.isdigit() and _IN_USE in rest and (port == own or _is_meeting_point(command, port)):
            return int(port)
    return None


def _is_meeting_point(command: bytes, port: bytes) -> bool:
    """Return whether it is the launch's port; a rank may fail to listen on a port of its own."""
    words = command.split()
    for number, value in enumerate(words[1:]):
        if words[number] == b"--master-port" and value == port:
            return True
        if words[number] == b"--rdzv-endpoint" and value.rstrip(b"'").endswith(b":" + port):
            return True
    return False


def _tail(folder: int, name: str) -> bytes:
    with open(job_folder.open_file_beneath(folder, name), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - _TAIL))
        return stream.read(_TAIL)
