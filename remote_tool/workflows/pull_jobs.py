"""job-pull: bring home the files that jobs wrote, now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.config.artifacts import read_artifacts
from remote_tool.errors import UsageError
from remote_tool.workflows.artifacts import PullAnswer, pull_artifacts
from remote_tool.workflows.list_jobs import load_meant, refresh, servers_of_jobs
from remote_tool.workflows.selection import choose_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.supervisor.artifact_patterns import ArtifactPattern
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.selection import JobSelection


async def pull_jobs(
    context: Context, selection: JobSelection, artifacts: Sequence[str | ArtifactPattern] = ()
) -> PullAnswer:
    """Bring home files of the selected jobs, running or ended; with artifacts, those instead of their own.

    Raises:
        UsageError: None of the jobs brings files home, and none are named.
    """
    patterns = read_artifacts(artifacts)
    servers = servers_of_jobs(context, selection)
    errors = await refresh(context, servers)
    meant = replace(selection, running=True, stopped=True)
    known, bad = load_meant(context, meant)
    chosen = choose_jobs(known, meant)
    wanted = [job for job in chosen if patterns or job.artifacts]
    if not wanted:
        raise UsageError(
            "No selected job brings files home" if chosen else "There are no such jobs",
            hint="remote-tool job-pull --artifact 'checkpoints/*.pt'" if chosen else "remote-tool job-list --stopped",
        )
    answer = await pull_artifacts(context, [job for job in wanted if job.server not in errors], patterns)
    asked = {job.server for job in chosen} if selection.jobs or selection.tags else set(servers)
    unreached = {server: error for server, error in errors.items() if server in asked}
    return replace(answer, errors={**unreached, **answer.errors}, bad=tuple(bad))
