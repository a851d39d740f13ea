"""The command that splits work over servers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.cli.console import Console, inform, leave_unless_ok, show_failures
from remote_tool.cli.following import Output
from remote_tool.cli.json_output import print_json, started_document
from remote_tool.cli.launch_commands import show_plan
from remote_tool.cli.options import (
    Artifacts,
    AsJson,
    Devices,
    Environment,
    Follow,
    Hostfile,
    Hosts,
    NoSync,
    Servers,
    Tags,
    Targets,
    Verbose,
    read_environment,
    refuse_both,
)
from remote_tool.cli.tables import how_it_ended
from remote_tool.config.devices import parse_devices
from remote_tool.errors import UsageError
from remote_tool.launchers.fan_out import TAG, FanOutPlan, FanOutRequest, fan_out_name
from remote_tool.workflows.audience import Audience
from remote_tool.workflows.selection import JobsAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool import Workspace
    from remote_tool.workflows.audience import Turn
    from remote_tool.workflows.fan_out import FanOutAnswer
    from remote_tool.workflows.follow_jobs import Chunk


def helper_fan_out(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Annotated[
        str, typer.Option("--cmd", metavar="COMMAND", help="What each shard runs; {shard} and the like are put in.")
    ] = "",
    total: Annotated[
        int | None, typer.Option("--total", min=1, metavar="N", help="Split this number evenly over the slots.")
    ] = None,
    items: Annotated[
        str | None, typer.Option("--items", metavar="FILE", help="Hand out the lines of a file, one to each free slot.")
    ] = None,
    per_server: Annotated[
        int | None,
        typer.Option("--per-server", min=1, metavar="N", help="Slots of each server; default: its GPUs, else 1."),
    ] = None,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    env: Environment = None,
    devices: Devices = None,
    tag: Tags = None,
    artifact: Artifacts = None,
    gather: Annotated[
        str, typer.Option("--gather", metavar="FOLDER", help="Put what came home into this folder of the project too.")
    ] = "",
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries", min=0, metavar="N", help="How often a shard that failed is started again; default: 1."
        ),
    ] = None,
    resume: Annotated[
        str, typer.Option("--resume", metavar="NAME", help="Go on with this fan-out, without what is done.")
    ] = "",
    no_sync: NoSync = False,
    follow_it: Follow = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and start nothing.")] = False,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Split work over every GPU, or slot, of every server: one job for each."""
    refuse_both(json=json, follow=follow_it)
    variables, targets = read_environment(env), Targets.read(server, hosts, hostfile)
    screen = _Screen(shows_output=follow_it)
    console = Console(verbose=verbose, activity="" if follow_it else "working")
    if resume:
        work = {"--cmd": cmd, "--total": total, "--items": items, "--per-server": per_server, "--dry-run": dry_run}
        where = {"--server": server, "--hosts": hosts, "--hostfile": hostfile, "--devices": devices}
        rest = {"--tag": tag, "--artifact": artifact, "--gather": gather, "--retries": retries is not None}
        _refuse_beside(resume, {**work, **where, **rest})
        _stay(
            console,
            targets,
            screen,
            lambda at: at.resume_fan_out(resume, variables, sync=not no_sync, audience=screen.audience, check=False),
            json=json,
        )
        return
    request = FanOutRequest(
        command=cmd,
        servers=targets.servers,
        total=total,
        items=read_items(items) if items is not None else (),
        per_server=per_server,
        environment=variables,
        tags=tuple(tag or ()),
        retries=1 if retries is None else retries,
        sync=not no_sync,
        artifacts=tuple(artifact or ()),
        devices=parse_devices(devices),
        gather=gather,
    )
    if dry_run:
        show_plan(console, targets, lambda at: at.plan_fan_out(request), json=json)
        return
    stays = follow_it or items is not None
    _stay(
        console,
        targets,
        screen,
        lambda at: at.fan_out(request, follow=stays, audience=screen.audience, check=False),
        json=json,
    )


def read_items(file: str) -> tuple[str, ...]:
    """Read the lines of a file that are not empty.

    Raises:
        UsageError: It cannot be read, is no text, or has no line.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--items {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--items {file} is no UTF-8 text: {error.reason} at byte {error.start}") from error
    lines = tuple(line for line in (each.rstrip("\r") for each in text.split("\n")) if line.strip())
    if not lines:
        raise UsageError(f"--items {file} has no lines, so there is nothing to do")
    if "\0" in text:
        raise UsageError(f"--items {file}: a line has a NUL, which no command can be given")
    return lines


class _Screen:
    """Shows how a fan-out gets on."""

    def __init__(self, *, shows_output: bool) -> None:
        self._output = Output()
        self.name = ""
        self.audience = Audience(self._on_plan, self._output.show if shows_output else _drop, self._on_end)

    def close(self) -> None:
        """Print what is left of the output."""
        self._output.close()

    def _on_plan(self, plan: FanOutPlan) -> None:
        self.name = plan.name
        inform(f"fan-out {plan.name}: {plan.headline}")

    def _on_end(self, turn: Turn, again: bool) -> None:
        rest = "; it is started again" if again else ""
        inform(f"shard {turn.shard.number} on {turn.slot.server}: {how_it_ended(turn.job)} (job {turn.job.key}){rest}")


def _drop(_chunk: Chunk) -> None:
    """Show nothing."""


def _stay(
    console: Console, targets: Targets, screen: _Screen, work: Callable[[Workspace], FanOutAnswer], *, json: bool
) -> None:
    with console:
        workspace = console.find_workspace(targets)
        try:
            with closing(screen):
                answer = work(workspace)
        except KeyboardInterrupt:
            if screen.name:
                inform(f"\nwhat runs goes on; to go on: {_resume(screen.name)}")
            raise
    if json:
        _print_document(workspace, answer)
    _show_answer(answer)
    leave_unless_ok(answer.exit_code)


def _show_answer(answer: FanOutAnswer) -> None:
    name = fan_out_name(answer.launch_id)
    if answer.is_followed:
        inform(f"fan-out {name}: {len(answer.done)} of {answer.shards} shards done")
        if answer.gathered:
            count = len(answer.gathered)
            inform(f"gathered {count} file{'' if count == 1 else 's'} in {answer.folder}")
    else:
        for job in answer.jobs:
            inform(f"shard {job.node_rank} on {job.server}: {how_it_ended(job)} (job {job.key})")
        inform(f"to see them: remote-tool job-list --tag {TAG}{name}")
    if answer.undone:
        inform(f"to go on: {_resume(name)}")
    show_failures(answer.errors)


def _resume(name: str) -> str:
    return f"remote-tool helper-fan-out --resume {name}"


def _print_document(workspace: Workspace, answer: FanOutAnswer) -> None:
    jobs = JobsAnswer(answer.jobs, answer.errors, warnings=answer.warnings)
    progress = {"shards": answer.shards, "done": sorted(answer.done), "failed": sorted(answer.failed)}
    progress["gathered"] = [str(path) for path in answer.gathered]
    names = {"launch_id": answer.launch_id, "name": fan_out_name(answer.launch_id)}
    print_json({**started_document(jobs, workspace.config.local.jobs), "fan_out": {**names, **progress}})


def _refuse_beside(resume: str, given: dict[str, object]) -> None:
    """Refuse to change what a fan-out does that was begun.

    Raises:
        UsageError: Something is given that it has already.
    """
    beside = [option for option, value in given.items() if value]
    if beside:
        raise UsageError(
            f"--resume goes on with what was asked for, so {beside[0]} is not taken beside it", hint=_resume(resume)
        )
