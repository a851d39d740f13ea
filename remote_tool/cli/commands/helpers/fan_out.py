"""The command that splits work over servers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.cli.following import Output
from remote_tool.cli.groups import ConnectionFlags, PlannedOrShown, StartFlags
from remote_tool.cli.options import read_environment
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, show_failures
from remote_tool.cli.output.json_output import print_json, started_document
from remote_tool.cli.starting import refuse_beside_resume, show_plan
from remote_tool.cli.tables.jobs import how_it_ended
from remote_tool.errors import UsageError
from remote_tool.jobs.job import FAN_OUT_TAG, launch_name
from remote_tool.readable import counted
from remote_tool.workflows.fan_out.observer import Observer
from remote_tool.workflows.fan_out.request import FanOutRequest
from remote_tool.workflows.selection import JobsAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool import Workspace
    from remote_tool.cli.output.console import Console
    from remote_tool.workflows.fan_out.answer import FanOutAnswer
    from remote_tool.workflows.fan_out.plan import FanOutPlan
    from remote_tool.workflows.fan_out.work_queue import Attempt
    from remote_tool.workflows.jobs.follow import Chunk


@dataclass(frozen=True)
class SplitOptions:
    """The work, and how it is split."""

    cmd: Annotated[
        str,
        typer.Option("--cmd", metavar="COMMAND", help="Command of each shard, with placeholders such as {shard}."),
    ] = ""
    total: Annotated[
        int | None, typer.Option("--total", min=1, metavar="N", help="Split this number evenly over the slots.")
    ] = None
    items: Annotated[
        str | None,
        typer.Option("--items", metavar="FILE", help="Give each free slot the next line of this file."),
    ] = None
    per_server: Annotated[
        int | None,
        typer.Option("--per-server", min=1, metavar="N", help="Slots per server; default: one per GPU, else 1."),
    ] = None
    gather: Annotated[
        str,
        typer.Option("--gather", metavar="FOLDER", help="Also copy fetched files into this folder of the project."),
    ] = ""
    retries: Annotated[
        int | None,
        typer.Option("--retries", min=0, metavar="N", help="Retry a failed shard up to N times; default: 1."),
    ] = None

    def request(self, start: StartFlags) -> FanOutRequest:
        """Return the request."""
        return start.request(
            FanOutRequest,
            command=self.cmd,
            total=self.total,
            items=read_items(self.items) if self.items is not None else (),
            per_server=self.per_server,
            retries=1 if self.retries is None else self.retries,
            gather=self.gather,
        )


def helper_fan_out(
    *,
    split: SplitOptions,
    resume: Annotated[
        str, typer.Option("--resume", metavar="NAME", help="Resume this fan-out; skips finished shards.")
    ] = "",
    start: StartFlags,
    shown: PlannedOrShown,
    connection: ConnectionFlags,
) -> None:
    """Split work over every GPU (or slot) of every server, with one job per shard."""
    screen = _Screen(shows_output=shown.follow)
    console = connection.console("" if shown.follow else "working")
    if resume:
        refuse_beside_resume(_resume(resume), split, start, dry_run=shown.dry_run)
        _follow_to_end(console, start, screen, _resuming(resume, start, screen.observer), json=shown.json)
        return
    request = split.request(start)
    if shown.dry_run:
        show_plan(console, start, lambda at: at.plan_fan_out(request), json=shown.json)
        return
    is_followed = shown.follow or split.items is not None
    _follow_to_end(
        console,
        start,
        screen,
        lambda at: at.fan_out(request, follow=is_followed, observer=screen.observer, check=False),
        json=shown.json,
    )


def _resuming(name: str, start: StartFlags, observer: Observer) -> Callable[[Workspace], FanOutAnswer]:
    variables = read_environment(start.env)
    return lambda at: at.resume_fan_out(
        name, variables, sync=not start.no_sync, overwrite=start.overwrite, observer=observer, check=False
    )


def read_items(file: str) -> tuple[str, ...]:
    """Read the lines of a file that are not empty.

    Raises:
        UsageError: The file cannot be read, is not text, or has no lines.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--items {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--items {file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    lines = tuple(line for line in (each.rstrip("\r") for each in text.split("\n")) if line.strip())
    if not lines:
        raise UsageError(f"--items {file} has no lines")
    if "\0" in text:
        raise UsageError(f"--items {file}: a line contains a NUL character")
    return lines


class _Screen:
    """Shows the progress of a fan-out."""

    def __init__(self, *, shows_output: bool) -> None:
        self._output = Output()
        self.name = ""
        self.observer = Observer(self._on_plan, self._output.show if shows_output else _drop, self._on_end)

    def close(self) -> None:
        """Print what is left of the output."""
        self._output.close()

    def _on_plan(self, plan: FanOutPlan) -> None:
        self.name = plan.name
        inform(f"fan-out {plan.name}: {plan.headline}")

    def _on_end(self, attempt: Attempt, again: bool) -> None:
        rest = "; retrying" if again else ""
        job, where = attempt.job, f"shard {attempt.shard.number} on {attempt.slot.server}"
        inform(f"{where}: {how_it_ended(job)} (job {job.key}){rest}")


def _drop(_chunk: Chunk) -> None:
    """Show nothing."""


def _follow_to_end(
    console: Console, start: StartFlags, screen: _Screen, work: Callable[[Workspace], FanOutAnswer], *, json: bool
) -> None:
    with console:
        workspace = start.find_workspace(console)
        try:
            with closing(screen):
                answer = work(workspace)
        except KeyboardInterrupt:
            if not screen.name:
                raise
            inform(f"\nstarted shards keep running; to resume: {_resume(screen.name)}")
            raise typer.Exit(streams.INTERRUPTED) from None
    if json:
        _print_document(workspace, answer)
    _show_answer(answer)
    leave_unless_ok(answer.exit_code)


def _show_answer(answer: FanOutAnswer) -> None:
    name = launch_name(answer.launch_id)
    if answer.is_followed:
        inform(f"fan-out {name}: {len(answer.done)} of {answer.shards} shards done")
        if answer.gathered:
            inform(f"gathered {counted(len(answer.gathered), 'file')} in {answer.folder}")
    else:
        for job in answer.jobs:
            inform(f"shard {job.node_rank} on {job.server}: {how_it_ended(job)} (job {job.key})")
        inform(f"to list them: remote-tool job-list --tag {FAN_OUT_TAG}{name}")
    if answer.undone:
        inform(f"to resume: {_resume(name)}")
    show_failures(answer.errors)


def _resume(name: str) -> str:
    return f"remote-tool helper-fan-out --resume {name}"


def _print_document(workspace: Workspace, answer: FanOutAnswer) -> None:
    jobs = JobsAnswer(answer.jobs, answer.errors, warnings=answer.warnings)
    progress = {"shards": answer.shards, "done": sorted(answer.done), "failed": sorted(answer.failed)}
    progress["gathered"] = [str(path) for path in answer.gathered]
    names = {"launch_id": answer.launch_id, "name": launch_name(answer.launch_id)}
    print_json({**started_document(jobs, workspace.config.local.jobs), "fan_out": {**names, **progress}})
