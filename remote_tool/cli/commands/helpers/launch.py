"""The commands that start one program on several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from remote_tool.cli.following import follow_started
from remote_tool.cli.groups import ConnectionFlags, LaunchFlags, PlannedOrShown, RendezvousFlags
from remote_tool.cli.output.console import inform
from remote_tool.cli.starting import start_or_plan
from remote_tool.errors import UsageError
from remote_tool.launchers.request import LaunchRequest

if TYPE_CHECKING:
    from remote_tool.workflows.selection import JobsAnswer

STARTING = "starting"

Nodes = Annotated[
    int | None,
    typer.Option(
        "--nnodes",
        min=1,
        metavar="N",
        help="Use only the first N servers, or N nodes of a Slurm cluster; default: all servers, and nodes of slurm:.",
    ),
]


def helper_torch_launch(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Annotated[
        str, typer.Option("--cmd", "--python-cmd", metavar="SCRIPT", help="Script and arguments, as after torchrun.")
    ],
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            "--nproc-per-node",
            metavar="N",
            help="Processes per server; gpu or cpu: one per device; auto: one per GPU, or 1 without GPUs. "
            "Default: as in the host list, else 1.",
        ),
    ] = None,
    nnodes: Nodes = None,
    use_env: Annotated[
        bool, typer.Option("--use-env", help="For compatibility with labml_remote; torchrun always does this.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, metavar="N", help="Restart failed workers up to N times.")
    ] = 0,
    start: RendezvousFlags,
    shown: PlannedOrShown,
    connection: ConnectionFlags,
) -> None:
    """Start torchrun on all servers at once, with the right variables set on each."""
    request = start.request(
        LaunchRequest,
        command=cmd,
        nproc_per_node=read_processes(nproc_per_node),
        use_env=use_env,
        max_restarts=max_restarts,
        nnodes=nnodes,
    )
    _launch(request, start, shown, connection)


def helper_launch(
    *,
    cmd: Annotated[
        str,
        typer.Option(
            "--cmd",
            metavar="COMMAND",
            help="Command for the shell; sees NODE_RANK, NNODES, MASTER_ADDR and MASTER_PORT.",
        ),
    ],
    nnodes: Nodes = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts", min=0, metavar="N", help="With --follow, restart the launch up to N times if it fails."
        ),
    ] = 0,
    start: RendezvousFlags,
    shown: PlannedOrShown,
    connection: ConnectionFlags,
) -> None:
    """Start a command once on each server, for programs that start their own processes."""
    if max_restarts and not shown.follow:
        raise UsageError("--max-restarts needs --follow, as this command restarts the launch", hint="Add --follow")
    request = start.request(LaunchRequest, command=cmd, max_restarts=max_restarts, launcher="shell", nnodes=nnodes)
    _launch(request, start, shown, connection)


def helper_mpi_launch(  # noqa: PLR0913 - one parameter per option
    *,
    cmd: Annotated[
        str | None,
        typer.Option("--cmd", metavar="COMMAND", help="Command that each rank runs; a .py file runs with python."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            *("--module", "-m"),
            metavar="MODULE",
            help="Python module that each rank runs instead of --cmd, with arguments: 'package.solve --steps 5'.",
        ),
    ] = None,
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            "--nproc-per-node",
            "--ppn",
            metavar="N|auto",
            help="Ranks per server; auto: one per GPU, or 1 without GPUs. Default: as in the host list, else 1.",
        ),
    ] = None,
    nnodes: Nodes = None,
    start: LaunchFlags,
    shown: PlannedOrShown,
    connection: ConnectionFlags,
) -> None:
    """Start mpiexec of MPICH over all servers; they do not need SSH access to each other."""
    request = start.request(
        LaunchRequest,
        command=_mpi_program(cmd, module),
        nproc_per_node=read_processes(nproc_per_node),
        launcher="mpi",
        nnodes=nnodes,
    )
    workspace, answer = start_or_plan(
        connection.console(STARTING),
        start,
        lambda at: at.plan_mpi(request),
        lambda at: at.launch_mpi(request, check=False),
        shown,
    )
    if shown.follow:
        follow_started(workspace, request, answer)


def helper_ray_launch(
    *,
    cmd: Annotated[
        str | None,
        typer.Option(
            "--cmd",
            metavar="COMMAND",
            help="Command that the first server runs once all have joined; without it, the cluster stays until it is "
            "killed.",
        ),
    ] = None,
    nnodes: Nodes = None,
    restart_workers: Annotated[
        bool,
        typer.Option("--restart-workers", help="Let a server whose Ray has ended join the cluster again."),
    ] = False,
    start: RendezvousFlags,
    shown: PlannedOrShown,
    connection: ConnectionFlags,
) -> None:
    """Start a Ray cluster on all servers, and a program that uses it."""
    if cmd is not None and not cmd.strip():
        raise UsageError("--cmd is empty", hint="Without --cmd, the cluster stays until remote-tool job-kill")
    request = start.request(
        LaunchRequest, command=cmd or "", launcher="ray", nnodes=nnodes, restart_workers=restart_workers
    )
    answer = _launch(request, start, shown, connection)
    if not cmd and not shown.follow:
        inform(f"next: remote-tool job-tail {answer.jobs[0].key} says when the cluster is ready, and how to use it")


def _launch(
    request: LaunchRequest, start: RendezvousFlags, shown: PlannedOrShown, connection: ConnectionFlags
) -> JobsAnswer:
    """Start a launch or show its plan; with ``--follow``, show its output until it ends, and exit with its status."""
    workspace, answer = start_or_plan(
        connection.console(STARTING),
        start,
        lambda at: at.plan_launch(request),
        lambda at: at.launch(request, check=False),
        shown,
    )
    if shown.follow:
        follow_started(workspace, request, answer)
    return answer


def read_processes(text: str | None) -> int | Literal["auto", "cpu", "gpu"] | None:
    """Read ``--nproc-per-node``.

    Raises:
        UsageError: The text is neither a number nor auto, cpu or gpu.
    """
    if text is None or text in {"auto", "cpu", "gpu"}:
        return text  # type: ignore[return-value]
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--nproc-per-node must be a whole number, auto, gpu or cpu, found {text!r}")
    return int(text)


def _mpi_program(cmd: str | None, module: str | None) -> str:
    """Return the command of each rank.

    Raises:
        UsageError: Both are given, or neither.
    """
    if (cmd is None) == (module is None):
        raise UsageError("Give either --cmd or -m", hint="--cmd 'python solve.py', or -m package.solve")
    return cmd or f"-m {module}"
