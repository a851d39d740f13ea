"""Start jobs and list them, or show the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from remote_tool.cli.following import show_problems
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data
from remote_tool.cli.output.json_output import print_json, started_document
from remote_tool.cli.tables.jobs import how_it_ended
from remote_tool.workflows.selection import JobsAnswer, JobSelection

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool import Workspace
    from remote_tool.cli.groups import PlannedOrShown, Targets
    from remote_tool.cli.output.console import Console
    from remote_tool.launchers.fan_out import FanOutPlan
    from remote_tool.launchers.plan import LaunchPlan
    from remote_tool.launchers.sweep import SweepPlan

    Plan = LaunchPlan | FanOutPlan | SweepPlan


def start_or_plan(
    console: Console,
    targets: Targets,
    plan: Callable[[Workspace], Plan],
    start: Callable[[Workspace], JobsAnswer],
    shown: PlannedOrShown,
) -> tuple[Workspace, JobsAnswer]:
    """Start a launch and show its jobs; exit if not all were started, and with ``--dry-run`` after showing the plan."""
    if shown.dry_run:
        show_plan(console, targets, plan, json=shown.json)
        raise typer.Exit
    with console:
        workspace = targets.find_workspace(console)
        answer = start(workspace)
    show_started(workspace, answer, json=shown.json)
    leave_unless_ok(answer.exit_code)
    return workspace, answer


def show_plan(console: Console, targets: Targets, make: Callable[[Workspace], Plan], *, json: bool) -> None:
    """Show what would be started."""
    with console:
        plan = make(targets.find_workspace(console))
    if json:
        print_json(plan.as_json())
    else:
        print_data(plan.text())


def show_started(workspace: Workspace, answer: JobsAnswer, *, json: bool) -> None:
    """Show which jobs were started."""
    if json:
        print_json(started_document(answer, workspace.config.local.jobs))
    for job in () if json else answer.jobs:
        inform(f"job {job.key} on {job.server}: {how_it_ended(job)}")
    show_problems(answer)


def select_started(answer: JobsAnswer) -> JobSelection:
    """Select the jobs that were started."""
    return JobSelection(jobs=tuple(job.id for job in answer.jobs), stopped=True, hidden=True)
