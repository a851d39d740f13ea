"""A supervisor's instructions."""

from __future__ import annotations

from remote_tool.protocol.lean.namedtuple import NamedTuple
from remote_tool.protocol.limits import DEFAULT_LOG_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple

    from remote_tool.agent.frozen.copies import Copy
    from remote_tool.agent.launch.cause import Membership
    from remote_tool.agent.leases.waiter import LeaseRequest
    from remote_tool.agent.wrapper.wrapper import CommandWrapper


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
    arrivals: "Tuple[int, ...]" = ()


class Plan(NamedTuple):
    """A job about to be started.

    Attributes:
        job_id: The job.
        folder: Descriptor of the job's folder.
        path: The same folder as an absolute path.
        reserve: Descriptor of the file reserved for the final record, locked.
        locked: Whether the file system could lock it.
        workdir: The working folder, absolute.
        environment: The command's environment.
        grace: Default grace period in seconds for stop requests.
        place: This machine.
        membership: The job's place in a launch of several nodes; None without one.
        log_limit: Limit in bytes for each output file.
        command_wrapper: The launch command that runs the command; None without one.
        script: What the shell inside reads.
        on_end: What to run when the job has ended; None: nothing.
        terminal: The program on a terminal: the command, or the user's shell; empty without one.
        max_duration: Seconds after which it is stopped; None: never.
        stop_if_idle: Seconds after which it is stopped if its GPUs are idle for so long; None: never.
        gpus: Its GPUs, by number or UUID; empty: all.
        retries: How many times its command is run again after a failure.
        retry_on: Exit codes and signals after which it is; empty: any failure.
        on_empty: What to run when the job has ended and none is left; None: nothing.
        queue: What it waits for before the command starts; None: nothing.
        copy: The copy of the project that it runs in; None: it runs in the project.
        nice: Added to the command's niceness; behind a launch command, by the script.
        hidden: Values of its variables, which no record shows.
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
    on_end: Optional[OnEnd] = None
    terminal: str = ""
    max_duration: Optional[float] = None
    stop_if_idle: Optional[float] = None
    gpus: "Tuple[str, ...]" = ()
    retries: int = 0
    retry_on: "Tuple[str, ...]" = ()
    on_empty: Optional[OnEmpty] = None
    queue: "Optional[QueueRequest]" = None
    copy: "Optional[Copy]" = None
    hidden: "Tuple[str, ...]" = ()
