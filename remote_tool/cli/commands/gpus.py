"""The command gpus."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ConnectionFlags, Targets
from remote_tool.cli.options import AsJson
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import print_json, servers_document
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.jobs import as_minute, readable_moment
from remote_tool.cli.tables.plain import GAP, plain_rows
from remote_tool.cli.tables.top import SHOWN_ID
from remote_tool.jobs.job import as_iso
from remote_tool.readable import counted, readable_size

if TYPE_CHECKING:
    from remote_tool.workflows.servers.gpus import GpusAnswer, GpuStatus, ServerGpus

STYLES = {"free": "green", "leased": "yellow", "used": "red", "unknown": "magenta"}
# The user of a process in another container: one word, as a script finds columns by their spaces.
UNSEEN = "unseen"
# On a narrow terminal, these columns are dropped one by one.
DROPPED = ("MODEL", "MEMORY", "SINCE")


def gpus(
    *,
    targets: Targets,
    wait: Annotated[
        int | None, typer.Option("--wait", min=1, metavar="N", help="Wait until a server has N free GPUs.")
    ] = None,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Show which GPUs are free, leased by jobs, or used by others, and how many jobs wait for some."""
    with connection.console("asking servers" if wait is None else "waiting for GPUs") as console:
        workspace = targets.find_workspace(console)
        if wait is None:
            answer = workspace.list_gpus(targets.servers)
        else:
            answer = workspace.wait_for_gpus(wait, targets.servers)
    if json:
        print_json(_document(answer))
    elif wait is None:
        _print(answer)
    else:
        print_data("\n".join(answer.with_free(wait)))
    show_failures(answer.errors)
    leave_unless_ok(answer.exit_code if wait is None or not answer.with_free(wait) else 0)


def _print(answer: GpusAnswer) -> None:
    """Print a row per GPU, then the number of waiting jobs and the limits of the answer."""
    on_terminal = streams.is_terminal(streams.OUT)
    rows = [row for name, server in answer.servers.items() for row in _rows(name, server, on_terminal=on_terminal)]
    if rows and on_terminal:
        _draw(rows)
    elif rows:
        streams.write_text(streams.OUT, plain_rows(rows))
    for name, server in answer.servers.items():
        for text in _remarks(server):
            inform(f"{one_line(name)}: {one_line(text)}")


def _document(answer: GpusAnswer) -> dict[str, Any]:
    servers = {name: asdict(server) for name, server in answer.servers.items()}
    for gpu in (gpu for server in servers.values() for gpu in server["gpus"]):
        if gpu["lease"]:
            gpu["lease"]["since"] = as_iso(gpu["lease"]["since"])
    return servers_document(servers, answer.errors)


def _remarks(server: ServerGpus) -> list[str]:
    queued = [f"{counted(len(server.queue), 'job')} in the queue"] if server.queue else []
    no_gpus = [] if server.gpus or server.problem or server.partitions else ["no GPUs"]
    problem = [f"its GPUs are unknown: {server.problem}"] if server.problem else []
    return [*no_gpus, *problem, *queued, *server.partitions, *server.notes]


def _rows(name: str, server: ServerGpus, *, on_terminal: bool) -> list[dict[str, str]]:
    show_start = readable_moment if on_terminal else as_minute
    return [
        {
            "SERVER": one_line(name),
            "GPU": str(gpu.index),
            "STATE": gpu.state if gpu.is_ours else f"{gpu.state}*",
            "USER": one_line(_users(gpu)),
            "JOB": one_line(_job(gpu)),
            "SINCE": show_start(gpu.lease.since) if gpu.lease and gpu.lease.since is not None else "",
            "LOAD": "" if gpu.load is None else f"{gpu.load:.0f}%",
            "MEMORY": _memory(gpu),
            "MODEL": one_line(gpu.name),
        }
        for gpu in server.gpus
    ]


def _users(gpu: GpuStatus) -> str:
    if gpu.lease:
        return gpu.lease.user
    users = [each.user or UNSEEN for each in gpu.processes]
    return ",".join(dict.fromkeys(users)) or (UNSEEN if gpu.state == "used" else "")


def _job(gpu: GpuStatus) -> str:
    """Return the job's name, else the end of its id; for a process without a job, its pid."""
    if gpu.lease:
        return gpu.lease.name or gpu.lease.job[-SHOWN_ID:]
    return ",".join(dict.fromkeys(each.job[-SHOWN_ID:] or f"pid={each.pid}" for each in gpu.processes))


def _memory(gpu: GpuStatus) -> str:
    if gpu.memory_used is None or gpu.memory_total is None:
        return ""
    return f"{readable_size(gpu.memory_used)}/{readable_size(gpu.memory_total)}".replace(" ", "")


def _draw(rows: list[dict[str, str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - in a pipe Rich need not load
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in DROPPED:
        if _width(rows, names) > console.width and name in names:
            names.remove(name)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name in names:
        flexible = name in {"SERVER", "USER", "JOB", "MODEL"}
        width = None if flexible else max(len(name), *(len(row[name]) for row in rows))
        table.add_column(
            name,
            justify="right" if name in {"GPU", "LOAD"} else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=width,
        )
    for row in rows:
        table.add_row(*(Text(row[name], style=STYLES.get(row[name], "") if name == "STATE" else "") for name in names))
    console.print(table)


def _width(rows: list[dict[str, str]], names: list[str]) -> int:
    return sum(max(len(name), *(len(row[name]) for row in rows)) + GAP for name in names)
