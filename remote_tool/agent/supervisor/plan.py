"""What a supervisor is to do."""

from __future__ import annotations

from remote_tool.protocol.lean.namedtuple import NamedTuple
from remote_tool.protocol.limits import DEFAULT_LOG_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from remote_tool.agent.launch.cause import Membership
    from remote_tool.agent.wrapper.wrapper import CommandWrapper


class Plan(NamedTuple):
    """A job that is about to be started.

    Attributes:
        job_id: Of the job.
        folder: Descriptor of its folder.
        path: The same folder, absolute.
        reserve: Descriptor of the file kept for the final record, locked.
        locked: Whether the file system could lock it.
        workdir: The working folder, absolute.
        environment: Of the command.
        grace: Seconds, when a request to stop does not say.
        place: This machine.
        membership: Its place in a launch of several nodes; None without one.
        log_limit: Bytes that each of its output files may have.
        command_wrapper: The launch command that its command runs behind; None without one.
        script: What the shell there reads.
        nice: What is added to the niceness of the command; behind a launch command, the script adds it.
    """

    job_id: str
    folder: int
    path: str
    reserve: int
    locked: bool
    workdir: str
    environment: Dict[bytes, bytes]
    grace: float
    place: Dict[str, str]
    membership: Optional[Membership] = None
    log_limit: int = DEFAULT_LOG_LIMIT
    command_wrapper: "Optional[CommandWrapper]" = None
    script: bytes = b""
    nice: Optional[int] = None
