"""The command that brings files of jobs home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.console import Console, inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.json_output import errors_as_json, job_as_json, print_json
from remote_tool.cli.options import AsJson, Jobs, Servers, Tags, Verbose
from remote_tool.workflows.selection import JobSelection

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool import Workspace
    from remote_tool.workflows.artifacts import PullAnswer


def job_pull(
    *,
    server: Servers = None,
    job: Jobs = None,
    tag: Tags = None,
    artifact: Annotated[
        list[str] | None,
        typer.Option("--artifact", metavar="GLOB", help="These files, not those it was started with; may be repeated."),
    ] = None,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Bring files of jobs home, running or ended, and print where those are that came; without a selection, of all."""
    selection = JobSelection(tuple(job or ()), tuple(tag or ()), tuple(server or ()))
    with Console(verbose=verbose, activity="asking the servers") as console:
        workspace = console.find_workspace()
        answer = workspace.pull_jobs(selection, tuple(artifact or ()), check=False)
    if json:
        print_json(pull_document(answer, workspace.config.local.jobs))
    else:
        _show(workspace, answer)
    for sentence in answer.bad:
        inform(sentence)
    show_failures(answer.errors)
    leave_unless_ok(answer.exit_code)


def pull_document(answer: PullAnswer, jobs_folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What ``--json`` prints: of each job the files that are here, and those that are not with the reason."""
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
            print_data(str(file.path.relative_to(workspace.root)))
        old = len(each.files) - len(new)
        counts = [f"{len(new)} new", f"{old} were here"] if each.files else ["no file"]
        counts += [f"{len(each.left_out)} left out"] if each.left_out else []
        counts += [f"{each.older} that it did not write"] if each.older and not each.files else []
        inform(f"job {each.job.key} on {each.job.server}: {', '.join(counts)}")
