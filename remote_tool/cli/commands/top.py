"""The command top."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ConnectionFlags, Targets
from remote_tool.cli.options import AsJson
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, show_failures
from remote_tool.cli.output.json_output import errors_as_json, job_as_json, print_json
from remote_tool.cli.tables.jobs import print_jobs
from remote_tool.cli.tables.plain import plain_rows
from remote_tool.cli.tables.top import gpu_rows, server_rows
from remote_tool.errors import UsageError
from remote_tool.jobs.job import as_iso
from remote_tool.protocol.limits import DEFAULT_INTERVAL, LONGEST_INTERVAL, SHORTEST_INTERVAL

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.workflows.servers.top import TopAnswer


def top(
    *,
    targets: Targets,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit; needs no terminal.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=SHORTEST_INTERVAL,
            max=LONGEST_INTERVAL,
            metavar="SECONDS",
            help="Seconds between two samples.",
        ),
    ] = DEFAULT_INTERVAL,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Watch GPUs, processors, memory and disks of servers, and their jobs.

    Keys: l shows the log of a job, a attaches to its terminal, t shows its stacks, k stops it, / filters, s sorts,
    ? explains the keys, q quits.
    """
    if once or json:
        _show_once(targets, connection, json=json)
        return
    # Textual draws on stderr.
    if not all(map(streams.is_terminal, (streams.IN, streams.OUT, streams.ERR))):
        raise UsageError("top needs a terminal", hint="remote-tool top --once works without one")
    from remote_tool.cli.top.run import show_screen  # noqa: PLC0415 - Textual loads only for the screen

    show_screen(targets, connection, interval)


def _show_once(targets: Targets, connection: ConnectionFlags, *, json: bool) -> None:
    with connection.console("asking servers") as console:
        workspace = targets.find_workspace(console)
        answer = workspace.take_samples(targets.servers)
    if json:
        print_json(_document(answer, workspace.config.local.jobs))
    else:
        _print(answer)
    show_failures(answer.errors)
    leave_unless_ok(answer.exit_code)


def _print(answer: TopAnswer) -> None:
    names = sorted({*answer.samples, *answer.errors})
    streams.write_text(streams.OUT, plain_rows(server_rows(names, answer.samples, answer.errors)))
    keys = {job.id: job.key for job in answer.jobs}
    gpus = [row for name, sample in sorted(answer.samples.items()) for row in gpu_rows(name, sample, keys)]
    if gpus:
        streams.write_text(streams.OUT, "\n" + plain_rows(gpus))
    if answer.jobs:
        streams.write_text(streams.OUT, "\n")
        print_jobs(answer.jobs, errors=answer.errors)
    elif answer.samples.keys() - answer.errors.keys():
        inform("no running jobs" + (" on the servers that answered" if answer.errors else ""))
    else:
        inform("no server answered")


def _document(answer: TopAnswer, jobs_folder: Path) -> dict[str, Any]:
    servers = [{"server": name, **asdict(sample)} for name, sample in sorted(answer.samples.items())]
    for gpu in (gpu for server in servers for gpu in server["gpus"]):
        if gpu["lease"]:
            gpu["lease"]["since"] = as_iso(gpu["lease"]["since"])
    return {
        "servers": servers,
        "jobs": [job_as_json(job, jobs_folder) for job in answer.jobs],
        "errors": errors_as_json(answer.errors),
    }
