"""The command job-stacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ChosenJobs, ConnectionFlags
from remote_tool.cli.options import AsJson
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import errors_as_json, print_json
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.stacks import stack_lines
from remote_tool.jobs.stacks import StackGroup, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.workflows.jobs.stacks import StacksAnswer


def job_stacks(
    *,
    jobs: ChosenJobs,
    native: Annotated[
        bool, typer.Option("--native", help="Also show calls in C and C++; needs py-spy on the servers.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show the calls of the launcher.")] = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Show where the Python processes of jobs are; equal stacks are grouped, and the odd rank comes first.

    An ended job shows what its server kept before it stopped the processes.
    """
    with connection.console("asking servers") as console:
        answer = console.find_workspace().take_stacks(jobs.selection(), native=native)
    _show(answer, json=json, is_whole=everything)
    leave_unless_ok(answer.exit_code)


def _show(answer: StacksAnswer, *, json: bool, is_whole: bool) -> None:
    """Show the processes in groups, each with the stack of the first one."""
    groups = grouped(answer.processes)
    if json:
        shown = [_as_json(group) for group in groups]
        kept = [{"job": each.job.key, "server": each.job.server, "text": each.text} for each in answer.kept]
        print_json({"groups": shown, "kept": kept, "errors": errors_as_json(answer.errors)})
    elif groups or answer.kept:
        print_data("\n".join([*stack_lines(answer, is_whole=is_whole), *_kept_lines(answer)]))
    elif not answer.errors and not answer.notes:
        inform("no Python processes found in the selected jobs")
    for server, text in answer.notes:
        inform(f"{server}: {text}")
    # Their stacks are shown, but without the calls that were requested.
    for server, why in dict.fromkeys((each.server, each.why) for each in answer.processes if each.why and each.stack):
        inform(f"{server}: no calls in C and C++: {why}")
    show_failures(answer.errors)


def _kept_lines(answer: StacksAnswer) -> Iterator[str]:
    for each in answer.kept:
        yield f"kept by job {each.job.key} on {each.job.server}:"
        yield from (one_line(f"    {line}") for line in each.text.splitlines() if line.strip())


def _as_json(group: StackGroup) -> dict[str, Any]:
    return {"label": group.label, "where": group.where, "processes": [asdict(each) for each in group.processes]}
