"""Run a failed command again, up to a number of times: the same job, in the same folders."""

from __future__ import annotations

import signal
from contextlib import suppress

from remote_tool.agent import states
from remote_tool.protocol import job_folder
from remote_tool.protocol.marks import ATTEMPT_VARIABLE
from remote_tool.protocol.setup_script import DONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan
    from remote_tool.agent.supervisor.shell import CommandEnd

# A shell reports a signal that ended its program so.
_SIGNALED = 128


class Attempts:
    """The attempts of a job with retries.

    Attributes:
        failed: How each attempt before this one ended, such as ``exit code 75``.
    """

    def __init__(self) -> None:
        self.failed: List[str] = []

    def plan_for(self, plan: Plan) -> Plan:
        """Return the plan of this attempt at a job."""
        name, number = ATTEMPT_VARIABLE, len(self.failed) + 1
        if plan.request.command_wrapper is not None:
            from remote_tool.agent.wrapper.wrapper import ECHO_BEGUN  # noqa: PLC0415 - few jobs have a launch command

            before, begun, rest = plan.script.rpartition(ECHO_BEGUN.encode())
            return plan._replace(script=b"%bexport %b=%d\n%b%b" % (before, name.encode(), number, begun, rest))
        return plan._replace(environment={**plan.environment, name.encode(): b"%d" % number})

    def prepare_next(self, plan: Plan, outcome: JobOutcome, *, is_stopping: bool) -> bool:
        """Forget a failed attempt, and return True, if there is to be another; its processes must have ended."""
        end = outcome.end
        is_over = is_stopping or outcome.was_stopped or bool(outcome.unkillable)
        if is_over or len(self.failed) >= plan.spec["retries"] or not _is_for(plan, end):
            return False
        self.failed.append(
            end.signal or (f"exit code {end.exit_code}" if end.exit_code is not None else "no exit code")
        )
        note = states.describe_attempt(self.failed, plan.spec["retries"])
        outcome.begin_again(note)
        # The command says so in these; a full disk, or one that does not answer now, is the next attempt's problem.
        with suppress(OSError):
            job_folder.remove(plan.folder, job_folder.BEGUN)
            job_folder.remove(plan.folder, DONE)
        with suppress(OSError):
            job_folder.add_lines(plan.folder, [note])
        return True


def _is_for(plan: Plan, end: CommandEnd) -> bool:
    """Return whether a command that ended so is run again."""
    if end.exit_code == 0:
        return False
    return not plan.spec["retry_on"] or any(_matches(end, each) for each in plan.spec["retry_on"])


def _matches(end: CommandEnd, expected: str) -> bool:
    if expected.isdigit():
        return end.exit_code == int(expected)
    return end.signal == expected or end.exit_code == _SIGNALED + signal.Signals.__members__.get(expected, 0)
