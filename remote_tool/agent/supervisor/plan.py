"""A job as requested, and as its supervisor runs it."""

from __future__ import annotations

from remote_tool.protocol.limits import DEFAULT_LOG_LIMIT
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple

    from remote_tool.agent.frozen.copies import Copy
    from remote_tool.agent.launch.cause import Membership
    from remote_tool.agent.leases.waiter import LeaseRequest
    from remote_tool.agent.wrapper.wrapper import CommandWrapper
    from remote_tool.protocol.records import Record


class OnEnd(NamedTuple):
    """A command to run when a job ends.

    Attributes:
        command: For the shell.
        secrets: Variables of this command alone, held in the supervisor's memory.
        name: The job's name.
    """

    command: str
    secrets: Dict[str, str]
    name: str


class OnEmpty(NamedTuple):
    """A command to run when a job has ended and nothing of this user is left here.

    Attributes:
        command: For the shell.
        secrets: Variables of this command alone, held in the supervisor's memory.
        after: Seconds to wait for another job first.
    """

    command: str
    secrets: Dict[str, str]
    after: float


class QueueRequest(NamedTuple):
    """The GPUs and jobs that a job waits for.

    Attributes:
        lease: The GPUs, or one of the slots of its sweep; None without any.
        after: The ids of the jobs that must have ended.
        after_any: Whether it does not matter how they ended.
        may_wait: Whether it waits for its GPUs; otherwise, it fails if they are not free.
        slots: Of its sweep on this server; 0: the lease is of GPUs.
        sweep: The id of its sweep.
        arrivals: The ends of a pipe that each job of the same request closes when it has its place in the queue.
    """

    lease: Optional[LeaseRequest]
    after: Tuple[str, ...] = ()
    after_any: bool = False
    may_wait: bool = True
    slots: int = 0
    sweep: str = ""
    arrivals: Tuple[int, ...] = ()


class RequestedJob(NamedTuple):
    """A validated job to start.

    Attributes:
        spec: The job's record.
        command: The shell command, in full.
        environment: The environment of the command, or of its launch command.
        membership: The job's place in a launch of several nodes; None without one.
        log_limit: Limit in bytes for each output file.
        command_wrapper: The launch command that runs the command; None without one.
        script: The script that the shell behind the launch command reads.
        setup: The script that the shell sources first; empty without one.
        on_end: Run when the job has ended; None: nothing.
        on_empty: Run when the job has ended and none is left; None: nothing.
        queue: The GPUs and jobs that it waits for before the command starts; None: nothing.
        copy: The copy of the project that it runs in; None: it runs in the project.
        hidden: Values of its variables, which no record shows.
        earlier: How attempts ended that other supervisors have watched over.
    """

    spec: Record
    command: str
    environment: Dict[bytes, bytes]
    membership: Optional[Membership] = None
    log_limit: int = DEFAULT_LOG_LIMIT
    command_wrapper: Optional[CommandWrapper] = None
    script: bytes = b""
    setup: str = ""
    on_end: Optional[OnEnd] = None
    on_empty: Optional[OnEmpty] = None
    queue: Optional[QueueRequest] = None
    copy: Optional[Copy] = None
    hidden: Tuple[str, ...] = ()
    earlier: Tuple[str, ...] = ()


class Plan(NamedTuple):
    """A job about to be started: the request, and the folder that was made for it.

    Attributes:
        request: The job as requested.
        folder: Descriptor of the job's folder.
        path: The same folder as an absolute path.
        reserve: Descriptor of the file reserved for the final record, locked.
        locked: Whether the file system could lock it.
        workdir: The working folder, absolute.
        environment: The command's environment: as requested, with the GPUs and the number of the attempt.
        script: The script that the shell behind the launch command reads, with these as well.
    """

    request: RequestedJob
    folder: int
    path: str
    reserve: int
    locked: bool
    workdir: str
    environment: Dict[bytes, bytes]
    script: bytes = b""

    @property
    def spec(self) -> Record:
        """The job's record, as in spec.json."""
        return self.request.spec

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.request.spec["id"])
