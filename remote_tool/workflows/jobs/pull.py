"""job-pull: pull the artifacts of jobs, and the files that their servers keep."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.config.artifacts import read_artifacts, read_folder
from remote_tool.errors import UsageError
from remote_tool.workflows.artifacts.answer import PulledJob
from remote_tool.workflows.artifacts.pull import pull_artifacts
from remote_tool.workflows.jobs.kept import fetch_kept
from remote_tool.workflows.jobs.listing import load_matching, refresh, servers_of_jobs
from remote_tool.workflows.selection import choose_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.protocol.artifact_patterns import ArtifactPattern
    from remote_tool.transport.pool import Results
    from remote_tool.workflows.artifacts.answer import Artifact, PullAnswer
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.selection import JobSelection


async def pull_jobs(
    context: Context,
    selection: JobSelection,
    artifacts: Sequence[str | ArtifactPattern] = (),
    to: str | Path | None = None,
) -> PullAnswer:
    """Pull artifacts of the selected jobs, running or ended, with ``artifacts`` instead of their own patterns.

    Raises:
        UsageError: There is nothing to pull, or the artifacts cannot go to that folder.
    """
    patterns = read_artifacts(artifacts)
    folder = None if to is None else read_folder(to, context.config.local)
    servers = servers_of_jobs(context, selection)
    errors = await refresh(context, servers)
    matching = replace(selection, running=True, stopped=True)
    known, bad = load_matching(context, matching)
    chosen = choose_jobs(known, matching)
    with_artifacts = [job for job in chosen if patterns or job.artifacts]
    # With a folder or patterns, only artifacts were requested.
    may_have_kept = chosen if folder is None and not patterns else []
    kept = await fetch_kept(context, [job for job in may_have_kept if job.server not in errors])
    if not with_artifacts and not kept.errors and not any(kept.values.values()):
        if not chosen:
            raise UsageError("No job matches", hint="remote-tool job-list --stopped")
        hint = f"remote-tool job-pull {chosen[-1].key} --artifact 'checkpoints/*.pt'"
        raise UsageError("No selected job has artifacts", hint=hint)
    answer = await pull_artifacts(
        context, [job for job in with_artifacts if job.server not in errors], patterns, folder
    )
    answer = _add_kept(answer, chosen, kept)
    relevant = {job.server for job in chosen} if selection.jobs or selection.tags else set(servers)
    unreachable = {server: error for server, error in errors.items() if server in relevant}
    return replace(answer, errors={**unreachable, **answer.errors}, bad=tuple(bad))


def _add_kept(answer: PullAnswer, jobs: Sequence[Job], kept: Results[dict[str, list[Artifact]]]) -> PullAnswer:
    """Add the files that servers keep beside the output of jobs."""
    by_job = {each.job.id: each for each in answer.jobs}
    for files in kept.values.values():
        for job in jobs:
            if job.id in files:
                pulled = by_job.get(job.id) or PulledJob(job)
                by_job[job.id] = replace(pulled, files=(*pulled.files, *files[job.id]))
    return replace(answer, jobs=tuple(by_job.values()), errors={**kept.errors, **answer.errors})
