"""Start the command's first process: forked, recorded, and only then released."""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.agent.proc import processes
from remote_tool.agent.supervisor.shell import restore_signals, run_shell
from remote_tool.protocol import job_folder
from remote_tool.protocol.marks import TRACER_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, NoReturn, Optional, Tuple

    from remote_tool.agent.proc.processes import Process
    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan
    from remote_tool.agent.supervisor.terminal import JobTerminal

NOT_STARTED = "the command could not be started"


def start(
    plan: Plan,
    umask: int,
    outcome: JobOutcome,
    record: Callable[[Process, Process], bool],
    terminal: Optional[JobTerminal] = None,
) -> bool:
    """Start the command; return whether it runs.

    Args:
        plan: The job.
        umask: The command's umask.
        outcome: Receives the process, or why there is none.
        record: Records the command's process and the supervisor's; returns whether the command may run.
        terminal: The command's terminal; None without one.
    """
    gate = os.pipe()
    errors = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        outcome.notes.append(f"{NOT_STARTED}: cannot fork: {error.strerror}")
        return False
    if pid == 0:
        become_command(plan, umask, gate, errors, terminal)
    os.close(gate[0])
    os.close(errors[1])
    may_run = _record(pid, outcome, record)
    if may_run:
        # It may have been killed while waiting.
        with suppress(BrokenPipeError):
            os.write(gate[1], b"1")
    os.close(gate[1])
    failure = os.read(errors[0], 4096).decode("utf-8", "replace")
    os.close(errors[0])
    if failure:
        outcome.notes.append(f"{NOT_STARTED}: {failure}")
    if failure or not may_run:
        os.waitpid(pid, 0)
    return may_run and not failure


def _record(pid: int, outcome: JobOutcome, record: Callable[[Process, Process], bool]) -> bool:
    this = None
    with suppress(OSError):
        outcome.command = processes.read_process(pid)
        this = processes.read_process(os.getpid())
    if this is None or outcome.command is None:
        outcome.notes.append(f"{NOT_STARTED}: /proc does not show its process")
        return False
    return record(outcome.command, this)


def become_command(
    plan: Plan, umask: int, gate: Tuple[int, int], errors: Tuple[int, int], terminal: Optional[JobTerminal] = None
) -> NoReturn:
    """In the forked child: wait until the start is recorded, then exec the command."""
    try:
        os.setsid()
        # Otherwise the gate would stay open when the supervisor dies.
        os.close(gate[1])
        if os.read(gate[0], 1) == b"1":
            restore_signals()
            os.umask(umask)
            if terminal is None:
                _write_into_logs(plan.folder)
            else:
                terminal.enter()
            os.chdir(plan.workdir)
            if plan.request.command_wrapper is not None:
                from remote_tool.agent.wrapper.wrapper import enter  # noqa: PLC0415 - few jobs have a launch command

                script = None if terminal is not None else plan.script
                enter(plan.request.command_wrapper.words, script, plan.environment)
            os.nice(plan.spec["nice"] or 0)
            tracer = {TRACER_VARIABLE.encode(): b"%d" % os.getppid()}
            run_shell(f"{plan.path}/{job_folder.COMMAND}", {**plan.environment, **tracer})
    except BaseException as error:  # noqa: BLE001 - the supervisor reports it, and this must never return
        os.write(errors[1], str(error).encode("utf-8", "replace")[:4000])
    finally:
        os._exit(127)


def _write_into_logs(folder: int) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
    os.dup2(os.open(job_folder.OUT, flags, dir_fd=folder), 1)
    os.dup2(os.open(job_folder.ERR, flags, dir_fd=folder), 2)
