"""job-attach: connect to the terminal of a running job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError
from remote_tool.workflows.jobs.listing import list_jobs, load_matching
from remote_tool.workflows.selection import JobSelection, choose_jobs, describe_jobs
from remote_tool.workflows.terminal.session import SessionEnd, serve_terminal_reconnecting

if TYPE_CHECKING:
    from remote_tool.errors import JobError
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.terminal.session import Screen


@dataclass(frozen=True)
class Attached:
    """The end of an attachment to a job.

    Attributes:
        job: The job.
        end: The end of the session.
        ended_unseen: Whether the job ended while the connection was lost, and its last output was not shown.
    """

    job: Job
    end: SessionEnd
    ended_unseen: bool = False


async def attach(context: Context, selection: JobSelection, screen: Screen) -> Attached:
    """Attach a screen to the terminal of the selected job, or the only one, until the job ends or the user detaches.

    If the connection is lost, it connects again.

    Raises:
        UsageError: Not one job is selected, it has no terminal, or it has ended.
        JobError: Its server cannot do it.
        ConnectError: Its server cannot be reached.
    """
    if not selection.is_explicit:
        return await attach_to(context, await _find_only_job(context, selection), screen)
    jobs = choose_jobs(load_matching(context, selection)[0], selection)
    if len(jobs) != 1:
        raise UsageError(
            f"{len(jobs)} jobs are selected, and only one can be attached to", hint="remote-tool job-attach KEY"
        )
    return await attach_to(context, jobs[0], screen)


async def _find_only_job(context: Context, selection: JobSelection) -> Job:
    answer = await list_jobs(context, selection)
    found = [job for job in answer.jobs if job.terminal and job.may_run]
    if len(found) == 1:
        return found[0]
    if not found:
        answer.raise_if_any_failed()
        hint = "remote-tool job-run --tty starts one"
        raise UsageError("No job with a terminal is running", hint=hint)
    hint = "remote-tool job-attach KEY"
    raise UsageError(f"{len(found)} jobs with a terminal are running: {describe_jobs(found)}", hint=hint)


async def attach_to(context: Context, job: Job, screen: Screen) -> Attached:
    """Attach to one job."""
    if not screen.is_terminal:
        hint = f"remote-tool job-tail {job.key}"
        raise UsageError("Attaching to a job needs a terminal as stdin and stdout", hint=hint)
    if not job.terminal:
        hint = f"remote-tool job-tail {job.key}; for a terminal, start it with job-run --tty"
        raise UsageError(f"Job {job.key} has no terminal", hint=hint)
    tail = f"remote-tool job-tail {job.key}"
    if job.state.is_final:
        raise UsageError(f"Job {job.key} has ended", hint=tail)
    request = {"job": job.id, "label": f"Job {job.key}", "hint": tail}
    end = await serve_terminal_reconnecting(context, job.server, "attach", request, screen)
    return Attached(job, end) if end.refusal is None else await _find_end(context, job, end.refusal)


async def _find_end(context: Context, job: Job, refusal: JobError) -> Attached:
    """Return the end of a job that has ended meanwhile; raise the refusal if it has not ended."""
    answer = await list_jobs(context, JobSelection(jobs=(job.id,)))
    ended = [each for each in answer.jobs if each.id == job.id and each.state.is_finished]
    if not ended:
        raise refusal
    return Attached(ended[0], SessionEnd(ended[0].program_exit_code), ended_unseen=True)
