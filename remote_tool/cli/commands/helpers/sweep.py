"""The commands that start a job for each combination of parameters, and show their results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.cli.groups import ConnectionFlags, StartFlags
from remote_tool.cli.options import AsJson, PlanOnly, read_environment
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import print_json, started_document
from remote_tool.cli.starting import refuse_beside_resume, show_plan
from remote_tool.cli.tables.sweep import sweep_csv, sweep_document, sweep_table
from remote_tool.errors import SomeServersFailedError, UsageError
from remote_tool.launchers.options import QueueOptions
from remote_tool.readable import counted
from remote_tool.workflows.selection import JobsAnswer
from remote_tool.workflows.sweep.file import load_sweep_file
from remote_tool.workflows.sweep.request import SweepRequest
from remote_tool.workflows.sweep.values import Random, SweepSpec, assignments

if TYPE_CHECKING:
    from remote_tool import Workspace
    from remote_tool.cli.output.console import Console
    from remote_tool.workflows.sweep.answer import SweepAnswer
    from remote_tool.workflows.sweep.results import SweepResults


@dataclass(frozen=True)
class SweptOptions:
    """The parameters of a sweep, and their values."""

    cmd: Annotated[
        str,
        typer.Option("--cmd", metavar="COMMAND", help="Command of each job, with a placeholder such as {lr}."),
    ] = ""
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="NAME=VALUES", help="Values such as lr=0.1,0.01 or seed=1..5; may be repeated."),
    ] = None
    random: Annotated[
        int | None,
        typer.Option("--random", metavar="N", help="Draw N combinations of the parameters NAME=DISTRIBUTION…"),
    ] = None
    random_seed: Annotated[
        int | None,
        typer.Option("--random-seed", min=0, metavar="N", help="Draw the same combinations as with this seed before."),
    ] = None
    file: Annotated[
        str, typer.Option("--file", metavar="FILE", help="Read the command and the parameters from this YAML file.")
    ] = ""

    resume: Annotated[
        str,
        typer.Option(
            "--resume", metavar="NAME", help="Start what this sweep is missing: failed, lost and new combinations."
        ),
    ] = ""

    def read(self, distributions: list[str] | None) -> SweepSpec:
        """Return the command and the parameters from the options and the file.

        Raises:
            UsageError: They are invalid, or given both here and in the file.
        """
        found = load_sweep_file(Path(self.file)) if self.file else SweepSpec()
        if distributions and self.random is None:
            raise UsageError(f"{distributions[0]!r:.100} needs --random N", hint=f"--random 20 {distributions[0]:.100}")
        grid = assignments("--grid", self.grid or ())
        drawn = found.random
        if self.random is not None:
            drawn = Random(self.random, assignments("--random", distributions or ()))
        self._refuse_twice("--cmd", self.cmd, found.command)
        self._refuse_twice("--random", self.random is not None, found.random.is_given)
        for name in grid:
            self._refuse_twice(f"--grid {name}", grid, name in found.grid)
        seed = drawn.seed if self.random_seed is None else self.random_seed
        return replace(
            found, command=self.cmd or found.command, grid={**found.grid, **grid}, random=replace(drawn, seed=seed)
        )

    def _refuse_twice(self, option: str, given: object, in_file: object) -> None:
        if given and in_file:
            raise UsageError(f"{option} is given here and in {self.file}", hint="Keep one of the two")


@dataclass(frozen=True, eq=False, repr=False)
class SweepStart(QueueOptions, StartFlags):
    """How a sweep starts its jobs."""

    gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=0, metavar="N", help="GPUs of each job; default: 1 where servers have GPUs."),
    ] = None  # type: ignore[assignment]
    per_server: Annotated[
        int | None,
        typer.Option(
            "--per-server", min=1, metavar="K", help="Run K jobs at once on each server, without waiting for GPUs."
        ),
    ] = None


def helper_sweep(
    distributions: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=DISTRIBUTION", hidden=True, show_default=False)
    ] = None,
    *,
    swept: SweptOptions,
    start: SweepStart,
    dry_run: PlanOnly = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Queue a job for each combination of parameters, placed over all servers.

    Distributions for --random: lr=log:1e-5..1e-1, drop=uniform:0..0.5, width=int:16..512, opt=choice:adam,sgd
    """
    spec = swept.read(distributions)
    if swept.resume:
        # More combinations may be given.
        refuse_beside_resume(f"remote-tool helper-sweep --resume {swept.resume}", start, dry_run=dry_run)
        _show(*_resume(connection.console("queuing"), swept.resume, start, spec), json=json)
        return
    # Without GPUs, there is always a number of jobs at once.
    alone = 1 if start.gpus == 0 else None
    request = start.request(
        SweepRequest,
        command=spec.command,
        grid=spec.grid,
        random=spec.random,
        combinations=spec.combinations,
        gpus=start.gpus or 0,
        per_server=start.per_server or alone,
    )
    if dry_run:
        show_plan(connection.console("queuing"), start, lambda at: at.plan_sweep(request), json=json)
        return
    with connection.console("queuing") as console:
        workspace = start.find_workspace(console)
        answer = workspace.sweep(request, check=False)
    if request.random.is_given:
        inform(f"random seed: {request.random.seed}")
    _show(workspace, answer, json=json)


def _resume(console: Console, name: str, start: SweepStart, more: SweepSpec) -> tuple[Workspace, SweepAnswer]:
    variables = read_environment(start.env)
    with console:
        workspace = start.find_workspace(console)
        answer = workspace.resume_sweep(
            name,
            more,
            env=variables,
            sync=not start.no_sync,
            overwrite=start.overwrite,
            check=False,
        )
    return workspace, answer


def _show(workspace: Workspace, answer: SweepAnswer, *, json: bool) -> None:
    name = answer.name
    if json:
        jobs = JobsAnswer(answer.jobs, answer.errors, warnings=answer.warnings)
        about = {
            "launch_id": answer.launch_id,
            "name": name,
            "combinations": answer.combinations,
            "done": sorted(answer.done),
            "waiting": sorted(answer.waiting),
            "missing": answer.missing,
        }
        print_json({**started_document(jobs, workspace.config.local.jobs), "sweep": about})
    counts: dict[str, int] = {}
    for job in answer.jobs:
        counts[job.server] = counts.get(job.server, 0) + 1
    placed = ", ".join(f"{count} on {server}" for server, count in counts.items())
    before = [f"{len(each)} {word}" for each, word in ((answer.done, "done"), (answer.waiting, "waiting")) if each]
    inform(
        f"sweep {name}: {counted(answer.combinations, 'combination')}"
        + (f", {', '.join(before)}" if before else "")
        + f"; {counted(len(answer.jobs), 'job')} started"
        + (f": {placed}" if placed else "")
    )
    inform(f"to see the results: remote-tool sweep-show {name}")
    if answer.missing:
        inform(f"to start the {answer.missing} that are missing: remote-tool helper-sweep --resume {name}")
    show_failures(answer.errors)
    leave_unless_ok(answer.exit_code)


def sweep_show(  # noqa: PLR0913 - one parameter per option
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True, show_default=False)] = "",
    *,
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="Show the best value of this in the output, such as loss.")
    ] = "",
    mode: Annotated[
        str, typer.Option("--mode", metavar="min|max", help="Which value of --metric is the best.")
    ] = "min",
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="Sort by a parameter, a value, number, state, server, job, duration or best; -lr: in reverse.",
        ),
    ] = "",
    rsync: Annotated[bool, typer.Option("--rsync", help="Fetch the output and artifacts of its jobs first.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Show the combinations of a sweep with their states and values; without NAME, of the newest sweep."""
    if csv and json:
        raise UsageError("--csv and --json cannot be combined", hint="Keep one of them")
    with connection.console("asking") as console:
        workspace = console.find_workspace()
        found = workspace.sweep_results(name, metric=metric, mode=mode, sort=sort, logs=rsync)
    if json:
        print_json(sweep_document(found, workspace.config.local.jobs))
    elif csv:
        streams.write_text(streams.OUT, sweep_csv(found))
    else:
        table, left_out = sweep_table(found, streams.width())
        print_data(table.rstrip("\n"))
        if left_out:
            inform(f"no room for {counted(left_out, 'column')}; --csv has all")
    _remark(found)
    show_failures(found.errors)
    if found.errors:
        servers = {row.job.server for row in found.rows if row.job is not None}
        leave_unless_ok(SomeServersFailedError(found.errors, sorted(servers - set(found.errors))).exit_code)


def _remark(found: SweepResults) -> None:
    if found.metric and found.incomplete:
        some = "a job has" if found.incomplete == 1 else f"{found.incomplete} jobs have"
        inform(f"{some} output that is not here; to fetch it: remote-tool sweep-show {found.name} --rsync")
    if found.shared:
        more = f" and {len(found.shared) - 1} more" if len(found.shared) > 1 else ""
        inform(
            f"several combinations wrote {found.shared[0]}{more}, so what is there is of the last one;"
            " {number} in the names that --cmd passes keeps them apart"
        )
    if missing := sum(1 for row in found.rows if row.is_started_by_resume):
        which = "one that failed or is" if missing == 1 else f"{missing} that failed or are"
        inform(f"to start the {which} missing: remote-tool helper-sweep --resume {found.name}")
