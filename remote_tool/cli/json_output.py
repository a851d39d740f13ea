"""The JSON documents of ``--json``."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from remote_tool.cli import streams
from remote_tool.jobs.job import Job, as_iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from remote_tool.errors import RemoteToolError
    from remote_tool.workflows.selection import JobsAnswer
    from remote_tool.workflows.strays import StraysAnswer


def job_as_json(job: Job, jobs_folder: Path) -> dict[str, Any]:
    """A job as programs see it; times are ISO 8601 UTC, log is the local folder."""
    return {
        "key": job.key,
        "id": job.id,
        "launch_id": job.launch_id or None,
        "node_rank": job.node_rank,
        "server": job.server,
        "state": job.state.value,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "reason": job.reason or None,
        "pid": job.pid,
        "tags": list(job.tags),
        "command": job.command,
        "created_at": as_iso(job.created_at),
        "started_at": as_iso(job.started_at),
        "ended_at": as_iso(job.ended_at),
        "log": str(jobs_folder / job.id),
    }


def errors_as_json(errors: Mapping[str, RemoteToolError]) -> list[dict[str, str]]:
    """Each server's error."""
    return [{"server": server, "message": str(error)} for server, error in errors.items()]


def jobs_document(
    jobs: Iterable[Job], errors: Mapping[str, RemoteToolError], jobs_folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """What every command about jobs prints."""
    return {"jobs": [job_as_json(job, jobs_folder) for job in jobs], "errors": errors_as_json(errors)}


def started_document(answer: JobsAnswer, jobs_folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What commands that start jobs print; the warnings only where there are any, as other readers know two keys."""
    document = jobs_document(answer.jobs, answer.errors, jobs_folder)
    warnings = [{"server": server, "message": text} for server, text in answer.warnings]
    return {**document, "warnings": warnings} if warnings else document


def servers_document(
    values: Mapping[str, Any], errors: Mapping[str, RemoteToolError]
) -> dict[str, list[dict[str, Any]]]:
    """What the commands about servers print."""
    servers = [{"server": server, **_as_mapping(value)} for server, value in values.items()]
    return {"servers": servers, "errors": errors_as_json(errors)}


def strays_document(
    found: StraysAnswer, errors: Mapping[str, RemoteToolError], *, ended: bool
) -> dict[str, list[dict[str, Any]]]:
    """What ``job-kill --strays`` prints."""
    strays = [
        {
            "server": stray.server,
            "pid": stray.pid,
            "job": stray.job_id,
            "key": stray.key,
            "state": stray.state,
            "command": stray.command,
            "age_seconds": round(stray.age, 1),
            "memory_bytes": stray.memory,
            "gpu_memory_bytes": stray.gpu_memory,
            "ended": ended and stray.server not in errors,
        }
        for stray in found.strays
    ]
    return {"strays": strays, "errors": errors_as_json(errors)}


def print_json(document: Any) -> None:  # noqa: ANN401 - any document
    """Print the one document."""
    streams.write_text(streams.OUT, json.dumps(document, indent=2) + "\n")


def _as_mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass or a mapping
    if is_dataclass(value) and not isinstance(value, type):
        found = asdict(value)
        changed = getattr(value, "changed", None)
        return found if changed is None else {**found, "changed": changed}
    return dict(value)
