"""The JSON documents of ``--json``."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from remote_tool.cli.output import streams
from remote_tool.errors import ConfigError, SomeServersFailedError
from remote_tool.jobs.job import Job, as_iso
from remote_tool.protocol.job_fields import JOB_FIELDS, MOMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from remote_tool.errors import RemoteToolError
    from remote_tool.protocol.job_fields import Field
    from remote_tool.workflows.selection import JobsAnswer


# The version of the documents, see docs/stability.md.
SCHEMA = 1


def job_as_json(job: Job, jobs_folder: Path) -> dict[str, Any]:
    """Return a job; times are ISO 8601 UTC, log is the local folder."""
    document: dict[str, Any] = {}
    for field in JOB_FIELDS:
        group, dot, name = field.shown.partition(".")
        if dot:
            document.setdefault(group, {})[name] = _field_as_json(field, job)
        elif group:
            document[group] = _field_as_json(field, job)
    values = dict(each.split("=", 1) for each in job.status_values)
    known = {"git": bool(job.git_commit), "slurm": bool(job.slurm_job)}
    groups = {name: document[name] if is_known else None for name, is_known in known.items()}
    return {**document, **groups, "values": values, "log": str(jobs_folder / job.id)}


def _field_as_json(field: Field, job: Job) -> Any:  # noqa: ANN401 - of the field's type
    value = getattr(job, field.name)
    if field.kind is MOMENT:
        return as_iso(value)
    return field.blank if value == "" else value


def errors_as_json(errors: Mapping[str, RemoteToolError]) -> list[dict[str, str]]:
    """Return the error of each server."""
    return [_error(server, str(error), error.hint) for server, error in errors.items()]


def _error(server: str, message: str, hint: str) -> dict[str, str]:
    """Return an error; a hint is the next command or what else to do, and empty without one."""
    return {"server": server, "message": message, "hint": hint}


class Document:
    """The one document that this run prints."""

    is_printed: ClassVar[bool] = False


def print_error(error: RemoteToolError) -> None:
    """Print the errors of a command that failed before it printed its document."""
    if Document.is_printed:
        return
    if isinstance(error, SomeServersFailedError):
        print_json({"errors": errors_as_json(error.failures)})
        return
    messages = error.problems if isinstance(error, ConfigError) else [error.message]
    print_json({"errors": [_error(error.server, message, error.hint) for message in messages]})


def jobs_document(
    jobs: Iterable[Job], errors: Mapping[str, RemoteToolError], jobs_folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Return the document of a command about jobs."""
    return {"jobs": [job_as_json(job, jobs_folder) for job in jobs], "errors": errors_as_json(errors)}


def started_document(answer: JobsAnswer, jobs_folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the document of a command that starts jobs; it has a key for warnings only if there are any."""
    document = jobs_document(answer.jobs, answer.errors, jobs_folder)
    warnings = [{"server": server, "message": text} for server, text in answer.warnings]
    return {**document, "warnings": warnings} if warnings else document


def servers_document(
    values: Mapping[str, Any], errors: Mapping[str, RemoteToolError]
) -> dict[str, list[dict[str, Any]]]:
    """Return the document of a command about servers."""
    servers = [{"server": server, **_as_mapping(value)} for server, value in values.items()]
    return {"servers": servers, "errors": errors_as_json(errors)}


def print_json(document: Mapping[str, Any]) -> None:
    """Print the one document; docs/schema.json has its shape."""
    Document.is_printed = True
    streams.write_text(streams.OUT, json.dumps({"schema": SCHEMA, **document}, indent=2) + "\n")


def _as_mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass or a mapping
    if is_dataclass(value) and not isinstance(value, type):
        fields = asdict(value)
        changed = getattr(value, "changed", None)
        return fields if changed is None else {**fields, "changed": changed}
    return dict(value)
