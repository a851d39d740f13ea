"""Record in fan-outs and sweeps what their jobs have done, before these jobs are removed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.job import JobState
from remote_tool.workflows.fan_out_records import fan_out_files
from remote_tool.workflows.sweep_records import sweep_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context


def note_done(context: Context, jobs: Iterable[Job]) -> dict[str, str]:
    """Record what these jobs have done, so that ``--resume`` knows it without them; return why others have to stay."""
    local = context.config.local
    by_launch: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.launch_id and job.node_rank is not None and job.state is JobState.SUCCEEDED:
            by_launch[job.launch_id].append(job)
    kept: dict[str, str] = {}
    for launch_id, own in by_launch.items():
        for files in (fan_out_files(local.fan_outs), sweep_files(local.sweeps)):
            if not (files.folder / f"{launch_id}.json").exists():
                continue
            try:
                files.note_done(launch_id, {job.node_rank for job in own if job.node_rank is not None})
            except JobError as error:
                why = f"{files.noun} {files.name_of(launch_id)} cannot record that it is done: {error}"
                kept |= {job.id: why for job in own}
    return kept
