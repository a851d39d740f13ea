"""Start jobs and list them, or show the plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING

import typer

from remote_tool.cli.following import show_problems
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data
from remote_tool.cli.output.json_output import print_json, started_document
from remote_tool.cli.output.questions import ask, can_ask
from remote_tool.cli.tables.jobs import how_it_ended
from remote_tool.config.servers import ALL_SERVERS
from remote_tool.errors import UsageError
from remote_tool.system.files import write_atomically
from remote_tool.workflows.selection import JobsAnswer, JobSelection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from _typeshed import DataclassInstance

    from remote_tool import StartRequest, Workspace
    from remote_tool.cli.groups import PlannedOrShown, Targets
    from remote_tool.cli.output.console import Console
    from remote_tool.config.model import Config
    from remote_tool.launchers.plan import LaunchPlan
    from remote_tool.workflows.fan_out.plan import FanOutPlan
    from remote_tool.workflows.sweep.plan import SweepPlan

    Plan = LaunchPlan | FanOutPlan | SweepPlan

# The options that `--resume` takes from its command line; the others are as they were at the start.
AT_RESUME = {"env", "no_sync", "overwrite"}


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
    """Print the plan, and start nothing."""
    with console:
        plan = make(targets.find_workspace(console))
    if json:
        print_json(plan.as_json())
    else:
        print_data(plan.text())


def refuse_beside_resume(command: str, *groups: DataclassInstance, dry_run: bool) -> None:
    """Refuse options that would change a fan-out or a sweep that has started; ``command`` resumes it.

    Raises:
        UsageError: One of them is given.
    """
    given = [
        each.name
        for group in groups
        for each in fields(group)
        if each.name not in AT_RESUME and getattr(group, each.name) != each.default
    ]
    beside = [*given, *(["dry_run"] if dry_run else [])]
    if beside:
        option = f"--{beside[0].replace('_', '-')}"
        raise UsageError(
            f"--resume keeps the options of the start, so it cannot be combined with {option}", hint=command
        )


def choose_where_to_start(config: Config, request: StartRequest) -> tuple[str, ...]:
    """Return the servers of a request that names none: as configured, else as answered on a terminal, else all."""
    usual = config.usual_servers
    is_decided = request.servers or request.after or request.any_server or config.listed
    if is_decided or len(usual) < 2:  # noqa: PLR2004 - nothing to choose
        return request.servers
    chosen = config.default_server
    if chosen is None and can_ask():
        chosen = _ask_for_server(config.local.chosen_server, usual)
    elif chosen is None:
        inform(f"starting on all {len(usual)} servers; --server NAME or default_server: in configs.yaml chooses one")
    return () if chosen in {None, ALL_SERVERS} else (chosen,)


def _ask_for_server(answer_file: Path, servers: Sequence[str]) -> str:
    """Ask once, keep the answer, and tell how to change it."""
    choices = (*servers, ALL_SERVERS)
    with suppress(OSError, ValueError):
        earlier = answer_file.read_text(encoding="utf-8").strip()
        if earlier in choices:
            inform(f"starting on {earlier}, as answered before; --server NAME or default_server: changes that")
            return earlier
    question = f"Start on which server? ({', '.join(servers)} or {ALL_SERVERS})"
    while (chosen := ask(question, ALL_SERVERS)) not in choices:
        inform(f"there is no server {chosen!r}")
    with suppress(OSError):
        answer_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(answer_file, f"{chosen}\n".encode())
    inform(f"not asked again; to choose for good: default_server: {chosen} in .remote/configs.yaml, or --server NAME")
    return chosen


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
