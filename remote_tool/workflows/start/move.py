"""Move jobs for any server that wait, to servers where GPUs are free for them.

The server where a job waits gives it up first, and records which job takes its place: only that one is started, by
whoever sees this record. So a job that is moved never runs twice, and is not lost when a program is killed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteToolError
from remote_tool.jobs.job import JobState, new_job_id
from remote_tool.jobs.records import merge
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.events import Notice
from remote_tool.workflows.start.copies import changed_since_copy
from remote_tool.workflows.start.free_gpus import ask_free_gpus
from remote_tool.workflows.start.kept_code import differing
from remote_tool.workflows.start.put_back import as_moved, put_back, why_not
from remote_tool.workflows.start.send import send_project
from remote_tool.workflows.status.query import ask_about_jobs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.start.free_gpus import FreeGpus


async def move_waiting(context: Context, waiting: Collection[str], reached: Sequence[str]) -> None:
    """Move waiting jobs, in their order, to other servers if they need not wait there."""
    recorded = context.registry.load_unfinished()[0]
    needed = {job_id for job in recorded for job_id in job.after}
    jobs = [job for job in recorded if job.id in waiting and job.id not in needed and _is_movable(context, job)]
    targets = {name for job in jobs for name in _targets(context, job, reached)}
    if not targets:
        return
    known = dict((await ask_free_gpus(context, sorted({*targets, *(job.server for job in jobs)}))).values)
    for job in sorted(jobs, key=lambda each: (-(each.priority or 0), each.created_at, each.key)):
        server = _choose(job, _targets(context, job, reached), known)
        if not server:
            continue
        try:
            if await _move(context, job, server):
                known[server] = known[server].after(job.gpu_count or 0)
        except RemoteToolError as error:
            context.report(Notice(server, f"job {job.key} cannot be moved here from {job.server}: {error}"))


def _is_movable(context: Context, job: Job) -> bool:
    is_waiting = job.state is JobState.QUEUED and bool(job.gpu_count and job.copy) and not job.after
    return is_waiting and not job.stop_signal and job.server in context.config.servers


def _targets(context: Context, job: Job, reached: Sequence[str]) -> list[str]:
    return [name for name in job.any_of if name != job.server and name in reached and name in context.config.servers]


def _choose(job: Job, targets: Sequence[str], known: Mapping[str, FreeGpus]) -> str:
    """Return the server with the most GPUs free now, if that is enough; empty to let the job wait where it is."""
    here, wanted = known.get(job.server), job.gpu_count or 0
    # It is about to begin, and so are those before it.
    if here is None or here.free >= max(wanted, sum(here.waiting)):
        return ""
    able = [name for name in targets if name in known and known[name].fits(wanted)]
    return max(able, key=lambda name: known[name].free, default="")


async def _move(context: Context, job: Job, server: str) -> bool:
    """Move a job if the other server can run the same; return whether it did."""
    copy = await _copy_on(context, job, server)
    wanted = replace(job, moved_to=server, moved_as=new_job_id(), moved_copy=copy)
    if not copy or why_not(context, as_moved(wanted), {copy}):
        return False
    request = {name: getattr(wanted, name) for name in ("id", "moved_to", "moved_as", "moved_copy")}
    await call_until_answered(context.pool, context.config, job.server, "withdraw", request)
    seen = (await ask_about_jobs(context, job.server, ids=[job.id])).jobs.get(job.id)
    if seen is None or not seen.job.moved_as:
        return False  # it has begun, or its server is slow: the next command sees what has become of it
    left = merge(job, seen.job)
    # As in job-list: recorded as ended only when the other one is there.
    await put_back(context, [left])
    context.registry.update([left])
    return left.moved_to == server


async def _copy_on(context: Context, job: Job, server: str) -> str:
    """Return the copy on a server of the code that a job was given with, after sending that; empty if it has changed.

    Raises:
        RemoteToolError: A server cannot be asked, or the project cannot be sent.
    """
    if copy := await _freeze(context, server, {"state": job.copy}):
        return copy
    files = await changed_since_copy(context, job.server, job.copy)
    if not files:
        sent = await send_project(context, [server], wanted=True)
        if error := sent.errors.get(server):
            raise error
        copy = await _freeze(context, server, {"snapshot": sent.snapshots[server]})
        if copy and copy.partition("-")[0] == job.copy.partition("-")[0]:
            return copy
    what = differing(files) if files else "there are other files"
    hint = f"remote-tool job-rerun {job.key} --server {server} runs the current code there"
    text = f"job {job.key} waits on {job.server} and is not moved here: the project has changed since, {what}; {hint}"
    context.report(Notice(server, text))
    return ""


async def _freeze(context: Context, server: str, question: Mapping[str, str]) -> str:
    answer = await call_until_answered(context.pool, context.config, server, "freeze", question)
    return str(answer.get("copy") or "")
