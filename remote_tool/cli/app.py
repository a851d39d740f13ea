"""The commands' table of contents, and the one place that catches our errors.

A command's module is imported when the command runs: ``--help`` and completion of names need none of them.
"""

from __future__ import annotations

import importlib
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from remote_tool import __version__
from remote_tool.cli import streams
from remote_tool.cli.local_problems import MOST_FILES, explain
from remote_tool.cli.options import Verbose, join_pairs
from remote_tool.errors import RemoteToolError, SomeServersFailedError

if TYPE_CHECKING:
    from types import FrameType

PROGRAM = "remote-tool"
INTERRUPTED = 128 + signal.SIGINT

# name: (module, what it does)
COMMANDS = {
    "init": ("init_command", "Write .remote/configs.yaml and exclude.txt."),
    "keys": ("server_commands", "Log in by key from now on: make one, and add it to servers."),
    "check": ("check_command", "Look whether servers are fit for training."),
    "prepare": ("workspace_commands", "Make servers ready: setup, rsync and update-packages."),
    "setup": ("workspace_commands", "Install the environment on servers."),
    "rsync": ("workspace_commands", "Send the project to servers."),
    "update-packages": ("workspace_commands", "Install the packages that the project names."),
    "run": ("workspace_commands", "Run a command and show what it prints."),
    "job-run": ("job_commands", "Start a job and return."),
    "helper-torch-launch": ("launch_commands", "Start torchrun on all servers."),
    "helper-mpi-launch": ("mpi_commands", "Start an MPI program on all servers."),
    "helper-fan-out": ("fan_out_command", "Split work over every GPU of every server."),
    "bandwidth": ("server_commands", "Measure what goes between every two servers."),
    "job-list": ("job_commands", "List jobs."),
    "job-tail": ("job_commands", "Follow what a job prints until it ends."),
    "job-kill": ("job_commands", "Stop jobs, every process of them."),
    "job-wait": ("job_commands", "Wait for jobs to end."),
    "job-rsync": ("job_commands", "Bring logs and artifacts home."),
    "job-pull": ("pull_command", "Bring checkpoints and other files of jobs home."),
    "demo": ("demo_commands", "Show the whole journey on throw-away servers."),
}


class AsGiven:
    """Takes the value of an option as it is where nothing is to be converted or checked.

    Typer loads pydantic for any value, which takes a quarter of a short command; so it does now for what is no text.
    A version of Typer that does not ask here works as it likes.
    """

    def __init__(self, parameter: Any) -> None:  # noqa: ANN401 - Typer's own type is private
        self._parameter = parameter

    @classmethod
    def put_before(cls, parameter: Any) -> Any:  # noqa: ANN401
        """Have a parameter ask here first; return it."""
        if parameter is not None:
            parameter._runtime_param = cls(parameter)  # noqa: SLF001 - what is lost without it is time
        return parameter

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Return what a command gets for a value."""
        if value is None:
            return () if getattr(param, "multiple", False) else None
        kind = param.type_descriptor.annotation
        if (kind is str and isinstance(value, str)) or (kind is int and getattr(param, "count", False)):
            return value
        if kind == list[str] and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            return list(value)
        self._parameter._runtime_param = None  # noqa: SLF001
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


class Command(TyperCommand):
    """A command whose ``--env`` takes two words, and whose ``-v`` may stand before its name too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer's own type is private
        """Read the arguments."""
        rest = super().parse_args(ctx, join_pairs(args))
        if ctx.obj:
            ctx.params["verbose"] += ctx.obj
        return rest

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        """Return ``--help``."""
        return AsGiven.put_before(super().get_help_option(ctx))


class TableOfContents(TyperGroup):
    """Lists commands without importing them."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401
        """Return ``--help``."""
        return AsGiven.put_before(super().get_help_option(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - Typer's own types are private
        """Import the command that is meant."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(command.name or ""), rest


def load_command(name: str) -> TyperCommand:
    """Import a command and make what Typer runs."""
    module = importlib.import_module(f"remote_tool.cli.{COMMANDS[name][0]}")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=Command)(getattr(module, name.replace("-", "_")))
    command = typer.main.get_command(single)
    assert isinstance(command, TyperCommand)
    for parameter in command.params:
        AsGiven.put_before(parameter)
    return command


def make_program() -> TyperGroup:
    """Return the program as Typer runs it."""
    app = typer.Typer(cls=TableOfContents, no_args_is_help=True, rich_markup_mode=None)
    app.callback()(options)
    program = typer.main.get_command(app)
    assert isinstance(program, TyperGroup)
    for parameter in program.params:
        AsGiven.put_before(parameter)
    for name, (_, summary) in COMMANDS.items():
        program.add_command(TyperCommand(name, help=summary), name)
    return program


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    *,
    verbose: Verbose = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Prepare machines that you reach by SSH, and train PyTorch on them."""
    del version
    context.obj = verbose


def main() -> NoReturn:
    """Run the program; show our errors as text and their exit status."""
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _allow_many_servers()
    try:
        make_program()(prog_name=PROGRAM)
    except RemoteToolError as error:
        from remote_tool.cli.console import show_error  # noqa: PLC0415 - --help does without

        show_error(error)
        sys.exit(error.exit_code if isinstance(error, SomeServersFailedError) else error.program_exit_code)
    except OSError as problem:
        explained = explain(problem)
        if explained is None:
            raise
        from remote_tool.cli.console import show_error  # noqa: PLC0415 - --help does without

        show_error(explained)
        sys.exit(explained.program_exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _allow_many_servers() -> None:
    """Open as many files as the system lets us: a shell's usual 1024, or 256, are 10 for each of few servers only."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(MOST_FILES, most)
    if usual != resource.RLIM_INFINITY and usual < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End as on Ctrl-C, so that connections, programs and temporary files are ended too."""
    sys.exit(streams.CLOSED_PIPE if streams.reader_gone.is_set() else 128 + number)
