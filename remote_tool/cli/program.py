"""The program for Typer: a table of contents, and commands that are imported when they run.

``--help`` and completion of names need none of their modules.
"""

from __future__ import annotations

import importlib
import math
import shlex
import signal
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from remote_tool import __version__
from remote_tool.cli.options import Verbose
from remote_tool.cli.output import streams
from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = "remote-tool"
# Typer has its own copy of click, whose place is private.
_CommandLineError: Any = typer.BadParameter.__base__

# group: name: (module, summary, example of its arguments)
GROUPS = {
    "Set up": {
        "init": ("commands.init", "Write .remote/configs.yaml and exclude.txt.", "--server gpu1=ubuntu@10.0.0.5"),
        "keys": ("commands.keys", "Set up key-based login to servers.", "--server gpu1"),
        "check": ("commands.check", "Check that servers are ready for training.", "--json"),
        "prepare": ("commands.prepare", "Prepare servers: environment, project and packages.", "--server gpu1"),
        "setup": ("commands.prepare", "Install the environment on servers.", "--force"),
        "rsync": ("commands.prepare", "Send the project to servers.", "--relay"),
        "data-sync": ("commands.prepare", "Send configured data sets to servers.", "imagenet --server gpu1"),
        "update-packages": ("commands.prepare", "Install the packages that the project lists.", "--show-output"),
        "bandwidth": (
            "commands.bandwidth",
            "Measure network bandwidth between servers.",
            "--server gpu1 --server gpu2",
        ),
        "gpus": ("commands.gpus", "Show which GPUs are free, and who has the others.", "--wait 2"),
        "ssh-config": (
            "commands.ssh_config",
            "Print or install ssh settings for servers, for ssh, scp, and editors.",
            "--install",
        ),
        "connections": ("commands.connections", "List the logins that are kept for later commands.", "--json"),
        "disconnect": ("commands.connections", "Close the logins that are kept.", "--server gpu1"),
    },
    "Start": {
        "run": ("commands.run", "Run a command and show its output.", "--server gpu1 -- df -h"),
        "shell": ("commands.terminal", "Open a shell on a server.", "--server gpu1 --keep work"),
        "forward": (
            "commands.forward",
            "Forward ports between this machine and servers.",
            "8888:localhost:6006 --server gpu1",
        ),
        "jupyter": ("commands.browser", "Open Jupyter Lab of a server in the browser.", "--server gpu1"),
        "job-run": ("commands.run", "Start a job and return.", "--server gpu1 -- python train.py --lr 1e-3"),
        "helper-torch-launch": (
            "commands.helpers.launch",
            "Start torchrun on all servers.",
            "--cmd 'train.py --epochs 5' --nproc-per-node 2 --follow",
        ),
        "helper-launch": (
            "commands.helpers.launch",
            "Start a command on every server, without torchrun.",
            "--cmd './run_train.sh' --follow",
        ),
        "helper-mpi-launch": (
            "commands.helpers.launch",
            "Start an MPI program on all servers.",
            "--cmd 'python solve.py' --ppn 2",
        ),
        "helper-ray-launch": (
            "commands.helpers.launch",
            "Start a Ray cluster on all servers.",
            "--cmd 'python tune.py' --follow",
        ),
        "helper-fan-out": (
            "commands.helpers.fan_out",
            "Split work across every GPU of every server.",
            "--cmd 'python evaluate.py --shard {shard} --of {shards}'",
        ),
        "helper-sweep": (
            "commands.helpers.sweep",
            "Queue a job for each combination of parameters.",
            "--cmd 'train.py --lr {lr} --seed {seed}' --grid lr=0.1,0.01 --grid seed=1..5",
        ),
    },
    "Jobs": {
        "job-list": ("commands.jobs", "List jobs.", "--stopped --tag sweep"),
        "job-show": ("commands.show", "Show everything about one job.", "3"),
        "sweep-show": ("commands.helpers.sweep", "Show the results of a sweep.", "--metric loss --mode min"),
        "top": ("commands.top", "Watch servers, GPUs and jobs.", "--once"),
        "job-tail": ("commands.jobs", "Follow the output of jobs until they end.", "3 --lines 20"),
        "job-stacks": ("commands.stacks", "Show where the Python processes of jobs are.", "3"),
        "job-attach": ("commands.terminal", "Attach to the terminal of a job.", "3"),
        "job-kill": ("commands.kill", "Stop jobs and all their processes.", "3 4"),
        "job-wait": ("commands.jobs", "Wait for jobs to end.", "3 --timeout 3600"),
        "job-rerun": ("commands.rerun", "Start jobs again as they were started.", "3 --env WANDB_API_KEY VALUE"),
        "job-requeue": ("commands.rerun", "Put jobs back into the queue that left it before they began.", "3 4"),
        "job-diff": ("commands.diff", "Compare two jobs.", "3 7"),
        "job-note": ("commands.jobs", "Add a note to a job.", "3 'lr too high'"),
        "job-rsync": ("commands.jobs", "Fetch logs and artifacts of jobs.", "--server gpu1"),
        "job-pull": ("commands.pull", "Fetch checkpoints and other files of jobs.", "3 --artifact 'out/*.pt'"),
        "tensorboard": ("commands.browser", "Show jobs in TensorBoard while they run.", "--tag sweep"),
        "clean": ("commands.clean", "Remove ended jobs and leftovers.", "--older 30d --keep 20"),
    },
    "Try": {"demo": ("commands.demo", "Try everything on throwaway local servers.", "")},
}
COMMANDS = {name: entry for commands in GROUPS.values() for name, entry in commands.items()}

# The commands of the first week, by task; with them, the program without arguments fits a terminal of 24 rows.
FIRST = {
    "Set up servers": ("init", "check", "prepare"),
    "Start": ("run", "job-run", "helper-torch-launch"),
    "Follow and stop": ("job-list", "job-tail", "top", "job-kill"),
    "Fetch and clean up": ("job-pull", "clean"),
}

# Names that other tools have for our commands.
ALSO_KNOWN_AS = {
    "ps": "job-list",
    "jobs": "job-list",
    "ls": "job-list",
    "list": "job-list",
    "status": "job-list",
    "logs": "job-tail",
    "tail": "job-tail",
    "kill": "job-kill",
    "stop": "job-kill",
    "job-stop": "job-kill",
    "wait": "job-wait",
    "ssh": "shell",
    "attach": "job-attach",
    "exec": "run",
    "sync": "rsync",
    "pull": "job-pull",
    "torchrun": "helper-torch-launch",
    "mpiexec": "helper-mpi-launch",
    "mpirun": "helper-mpi-launch",
    "ray": "helper-ray-launch",
}
# torchrun spells these with underscores too.
OF_TORCHRUN = ("nproc-per-node", "max-restarts", "master-port", "use-env")
RESUMED = {"prepare", "setup", "rsync", "update-packages", "keys", "data-sync", "job-rsync", "job-pull"}
# Printed after Ctrl-C; a command that follows jobs prints its own text.
AFTER_CTRL_C = {
    **dict.fromkeys(RESUMED, "; run it again to resume"),
    **dict.fromkeys(
        (
            "job-run",
            "job-rerun",
            "job-requeue",
            "helper-torch-launch",
            "helper-launch",
            "helper-mpi-launch",
            "helper-ray-launch",
            "helper-fan-out",
            "helper-sweep",
        ),
        f"; to see what was started: {PROGRAM} job-list",
    ),
    "job-kill": f"; to see what is still running: {PROGRAM} job-list",
    "job-wait": "; the jobs keep running",
    "forward": "; the ports are closed",
    "jupyter": f"; to see what was started: {PROGRAM} job-list",
    "tensorboard": "; TensorBoard has ended; the jobs keep running",
}
HELP_NAMES = {"help_option_names": ["--help", "-h"]}


class _AsGiven:
    """Takes numbers, lists of words, and what has its type already; Typer converts the rest.

    Typer loads pydantic for every value that it converts, a quarter of the time of a short command, and its errors
    about numbers do not show what was found.
    """

    def __init__(self, parameter: Any) -> None:  # noqa: ANN401 - Typer's own type is private
        self._parameter = parameter

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Return the value that a command gets."""
        if value is None:
            return () if getattr(param, "multiple", False) else None
        kind = param.type_descriptor.annotation
        if type(value) is kind or getattr(param, "count", False):
            return value
        if kind == list[str] and isinstance(value, list | tuple):
            return list(value)
        if kind in {int, float}:
            return _number(value, kind, param, ctx)
        return type(self._parameter).get_runtime_param(self._parameter).coerce(value, param=param, ctx=ctx)


def _number(text: str, kind: type[Any], param: Any, ctx: Any) -> float:  # noqa: ANN401
    """Return the number of an option.

    Raises:
        UsageError: It is none, or outside the option's range.
    """
    least, most = param.type_descriptor.parameter_info.min, param.type_descriptor.parameter_info.max
    try:
        number: float = kind(text)
    except ValueError:
        number = math.nan
    if (-math.inf if least is None else least) <= number <= (math.inf if most is None else most):
        return number
    bounds = ("" if least is None else f" from {least}") + ("" if most is None else f" to {most}")
    raise UsageError(
        f"{param.opts[0]} must be a {'whole ' if kind is int else ''}number{bounds}, found {text!r:.40}",
        hint=f"{ctx.command_path} --help",
    )


def _without_pydantic(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        parameter.get_runtime_param = partial(_AsGiven, parameter)
    return parameters


class Command(TyperCommand):
    """A command: ``--env`` takes one or two words, a program may follow the options, and Ctrl-C prints a next step."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - Typer's own types are private
        """Return the parameters."""
        return _without_pydantic(super().get_params(ctx))

    def make_parser(self, ctx: Any) -> Any:  # noqa: ANN401
        """Return the parser; Typer has no option that may be repeated and takes two words."""
        parser: Any = super().make_parser(ctx)
        names = parser._long_opt  # noqa: SLF001 - public in click until its version 9
        names.update(
            {f"--{name.replace('-', '_')}": names[f"--{name}"] for name in OF_TORCHRUN if f"--{name}" in names}
        )
        if option := names.get("--env"):
            option.process = _taking_pairs(option.process)
        # As with ssh, the options after a program are the program's.
        parser.allow_interspersed_args = all(each.name != "words" for each in self.params)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments.

        Raises:
            UsageError: An option after a program is one of this command, too, or --cmd lacks its quotes.
        """
        original = list(args)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except _CommandLineError as problem:
            if whole := self._unquoted(original):
                hint = f"If that belongs to the command, put all of it in quotes: --cmd {shlex.quote(whole)}"
                raise UsageError(problem.format_message().removesuffix("."), hint=hint) from None
            raise
        words = ctx.params.get("words") or []
        if not ctx.resilient_parsing and original[-len(words) - 1 : -len(words)] != ["--"]:
            self._refuse_own_options(words, ctx.command_path)
        return rest

    def _unquoted(self, args: list[str]) -> str:
        """Return the words from --cmd up to our next option, if quotes were forgotten; else empty."""
        ours = {name for each in self.params for name in (*each.opts, *each.secondary_opts)}
        place = next((index for index, word in enumerate(args) if word in {"--cmd", "--python-cmd"}), len(args))
        first, *rest = args[place + 1 :] or [""]
        words = [*takewhile(lambda word: word.partition("=")[0] not in ours, rest)]
        return " ".join([first, *words]) if words and first.split() == [first] else ""

    def _refuse_own_options(self, words: list[str], command: str) -> None:
        names = {name for each in self.params for name in (*each.opts, *each.secondary_opts)}
        ours = {name for name in names if name.startswith("--")} - {"--help"}
        before_dashes = words[: words.index("--")] if "--" in words else words
        for name in (word.partition("=")[0] for word in before_dashes[1:]):
            if name in ours:
                raise UsageError(
                    f"{name} after {words[0]!r:.100} may be meant for that program or for {command}",
                    hint=f"Put it before the program, or, if it is the program's: {command} -- PROGRAM {name} ...",
                )

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run the command; after Ctrl-C, print a next step."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # A second Ctrl-C has no effect: the rest takes only a moment.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            from remote_tool.cli.output.console import inform_of_interruption  # noqa: PLC0415 - --help does without

            inform_of_interruption(AFTER_CTRL_C.get(ctx.command.name, ""))
            raise typer.Exit(streams.INTERRUPTED) from None


def _taking_pairs(process: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Take the word after a name as its value: ``--env K V``, as in labml_remote, means ``--env K=V``."""

    def process_pair(value: str, state: Any) -> None:  # noqa: ANN401
        process(f"{value}={state.rargs.pop(0)}" if "=" not in value and state.rargs else value, state)

    return process_pair


class TableOfContents(TyperGroup):
    """Lists commands without importing them."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - Typer's own types are private
        """Return the parameters."""
        return _without_pydantic(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the summary of each command, by group."""
        del ctx
        width = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary, _) in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Import the command that is run."""
        if args and args[0] in ALSO_KNOWN_AS:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{ALSO_KNOWN_AS[args[0]]}'?")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(command.name or ""), rest


def first_steps() -> str:
    """Return the text of the program without arguments."""
    width = max(len(name) for names in FIRST.values() for name in names)
    tasks = [
        "\n".join([task, *(f"  {name.ljust(width)}  {COMMANDS[name][1]}" for name in names)])
        for task, names in FIRST.items()
    ]
    last = f"{PROGRAM} --help shows all; {PROGRAM} COMMAND --help the options of one."
    return "\n\n".join([f"Usage: {PROGRAM} COMMAND [OPTIONS]...", *tasks, last])


def load_command(name: str) -> TyperCommand:
    """Import a command and return it as Typer runs it."""
    place, _, example = COMMANDS[name]
    module = importlib.import_module(f"remote_tool.cli.{place}")
    flatten = importlib.import_module("remote_tool.cli.groups").flatten
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    epilog = f"Example: {PROGRAM} {name} {example}" if example else None
    single.command(name, cls=Command, context_settings=HELP_NAMES, epilog=epilog)(
        flatten(getattr(module, name.replace("-", "_")))
    )
    command = typer.main.get_command(single)
    assert isinstance(command, TyperCommand)
    return command


def make_program() -> TyperGroup:
    """Return the program as Typer runs it."""
    app = typer.Typer(cls=TableOfContents, no_args_is_help=True, rich_markup_mode=None)
    app.callback(context_settings=HELP_NAMES)(options)
    program = typer.main.get_command(app)
    assert isinstance(program, TyperGroup)
    for name, (_, summary, _) in COMMANDS.items():
        program.add_command(TyperCommand(name, help=summary), name)
    return program


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    *,
    verbose: Verbose = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prepare machines that you reach by SSH, and train PyTorch on them."""
    del version
    context.obj = verbose
