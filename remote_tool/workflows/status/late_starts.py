"""Give up starts that a server should have got long ago, with its help: it refuses them from then on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobState
from remote_tool.protocol.job_fields import REQUEST_FIELDS
from remote_tool.protocol.limits import NEVER_ARRIVED
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

# A start takes far less.
START_SECONDS = 600.0
# Of 16 KiB each in one request; the next command gives up the others.
MOST_AT_ONCE = 256


async def give_up_late_starts(context: Context, server: str, missing: Sequence[Job], folder_id: str) -> list[str]:
    """Give up the late ones among starts that a server does not know; return the ids that it has now.

    Args:
        context: The command's context.
        server: The server.
        missing: Jobs that it does not know.
        folder_id: Of its folder of jobs.
    """
    late = [job for job in missing if job.state is JobState.STARTING and time.time() - job.created_at > START_SECONDS]
    if not late or not _is_usual_folder(context, server, folder_id):
        return []
    portion = late[:MOST_AT_ONCE]
    jobs = [{each.name: getattr(job, each.name) for each in REQUEST_FIELDS if each.of_job} for job in portion]
    try:
        answer = await call_until_answered(context.pool, context.config, server, "give_up", {"jobs": jobs})
    except JobError:
        return []  # such as an older agent; the next command tries again
    given_up = answer.get("given_up")
    for job in portion:
        if isinstance(given_up, list) and job.id in given_up:
            hint = f"remote-tool job-rerun {job.key} starts it again"
            context.report(Notice(server, f"job {job.key}: {NEVER_ARRIVED}; {hint}"))
    return [job.id for job in portion]


def _is_usual_folder(context: Context, server: str, folder_id: str) -> bool:
    """Return whether a folder of jobs is the one that the server's other jobs are in: not that of an empty disk."""
    known = {job.folder_id for job in context.registry.load()[0] if job.server == server} - {""}
    return not known or folder_id in known
