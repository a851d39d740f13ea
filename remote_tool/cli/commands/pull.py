"""The command job-pull."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ChosenJobs, ConnectionFlags
from remote_tool.cli.options import AsJson, Overwrite
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import errors_as_json, job_as_json, print_json
from remote_tool.errors import SomeServersFailedError, UsageError
from remote_tool.transport.pool import Results

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool import Workspace
    from remote_tool.transport.sync.push import PushResult
    from remote_tool.workflows.artifacts.answer import PullAnswer
    from remote_tool.workflows.selection import JobSelection


def job_pull(  # noqa: PLR0913 - one parameter per option
    *,
    jobs: ChosenJobs,
    artifact: Annotated[
        list[str] | None,
        typer.Option(
            "--artifact",
            metavar="GLOB",
            help="Fetch files that match this pattern instead of the job's artifacts; may be repeated.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DIR", help="Save to DIR/<job id>/, outside the project."),
    ] = None,
    to_all: Annotated[
        bool, typer.Option("--to-all", help="Then send the files of this single job to the project on every server.")
    ] = False,
    overwrite: Overwrite = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Fetch files of running and ended jobs, and print the paths of new ones; without a selection, of all jobs."""
    selection = _select(jobs, to=to, to_all=to_all)
    with connection.console("asking servers") as console:
        workspace = console.find_workspace()
        answer = workspace.pull_jobs(selection, tuple(artifact or ()), to=to, check=False)
        sent = workspace.send_from_job(selection.jobs[0], overwrite=overwrite, check=False) if to_all else Results()
    if json:
        document = _document(answer, workspace.config.local.jobs)
        print_json({**document, **_sent_document(sent)} if to_all else document)
    else:
        _show(workspace, answer)
    for sentence in answer.bad:
        inform(sentence)
    # Files of a server that cannot be asked may have been fetched before.
    show_failures({**answer.errors, **sent.errors})
    failed = SomeServersFailedError(sent.errors, list(sent.values)).exit_code if sent.errors else 0
    leave_unless_ok(failed if to_all else answer.exit_code)


def _select(jobs: ChosenJobs, *, to: str | None, to_all: bool) -> JobSelection:
    """Return the selection.

    Raises:
        UsageError: ``--to-all`` is given with ``--to``, or without a single job.
    """
    selection = jobs.selection()
    if to_all and to is not None:
        raise UsageError("--to-all sends the artifacts folder, so it cannot be combined with --to")
    if to_all and len(selection.jobs) != 1:
        raise UsageError("--to-all needs exactly one job", hint="remote-tool job-pull KEY --to-all")
    return selection


def _sent_document(sent: Results[PushResult]) -> dict[str, list[dict[str, Any]]]:
    """Return the part of the document about the servers that the files were sent to."""
    servers = [{"server": server, "sent": list(result.sent)} for server, result in sent.values.items()]
    return {"sent_to": servers, "send_errors": errors_as_json(sent.errors)}


def _document(answer: PullAnswer, jobs_folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the document: the files of each job that are here, and the reason for each one that is not."""
    jobs = [
        {
            **job_as_json(each.job, jobs_folder),
            "files": [
                {"name": file.name, "path": str(file.path), "size": file.size, "new": file.is_new}
                for file in each.files
            ],
            "left_out": [{"name": name, "reason": reason} for name, reason in each.left_out],
        }
        for each in answer.jobs
    ]
    return {"jobs": jobs, "errors": errors_as_json(answer.errors)}


def _show(workspace: Workspace, answer: PullAnswer) -> None:
    for each in answer.jobs:
        new = [file for file in each.files if file.is_new]
        for file in new:
            is_inside = file.path.is_relative_to(workspace.root)
            print_data(str(file.path.relative_to(workspace.root) if is_inside else file.path))
        old = len(each.files) - len(new)
        counts = [f"{len(new)} new", f"{old} already here"] if each.files else ["no files"]
        counts += [f"{len(each.left_out)} skipped"] if each.left_out else []
        counts += [f"{each.older} not written by the job"] if each.older and not each.files else []
        inform(f"job {each.job.key} on {each.job.server}: {', '.join(counts)}")
