"""Run the program; the only place that catches our errors."""

from __future__ import annotations

import os
import pwd
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from remote_tool.cli.local_problems import explain
from remote_tool.cli.output import streams
from remote_tool.cli.program import COMMANDS, PROGRAM, make_program
from remote_tool.errors import MOST_FILES, RemoteToolError, SomeServersFailedError, UsageError

if TYPE_CHECKING:
    from types import FrameType

# Typer has its own copy of click, whose place is private.
_CommandLineError: Any = typer.BadParameter.__base__


def main() -> NoReturn:
    """Run the program; show our errors as text, and exit with their status."""
    # Before anything opens a file that stays open.
    streams.replace_closed()
    signal.signal(signal.SIGTERM, _leave)
    _allow_many_servers()
    _know_own_name()
    # Last, as what comes between this and the try would end with a traceback.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _run_program()
    except RemoteToolError as error:
        _show_error(error)
        sys.exit(error.exit_code if isinstance(error, SomeServersFailedError) else error.program_exit_code)
    except (OSError, ImportError) as problem:
        explained = explain(problem)
        if explained is None:
            raise
        _show_error(explained)
        sys.exit(explained.program_exit_code)
    except KeyboardInterrupt:
        sys.exit(streams.INTERRUPTED)
    sys.exit(0)


def _run_program() -> None:
    """Parse the arguments and run the command; a usage error is shown like any other error."""
    try:
        sys.exit(make_program()(prog_name=PROGRAM, standalone_mode=False) or 0)
    except _CommandLineError as problem:
        if problem.message == (problem.ctx and problem.ctx.get_help()):
            problem.show()  # without any argument, the help is the answer
            sys.exit(problem.exit_code)
        hint = f"{_command_of(problem)} --help"
        raise UsageError(problem.format_message().removesuffix("."), hint=hint) from None
    except typer.Abort:
        raise KeyboardInterrupt from None


def _command_of(problem: _CommandLineError) -> str:
    """Return the command whose words are wrong; where the parser does not say, the first word that names one."""
    if problem.ctx is not None:
        return str(problem.ctx.command_path)
    return " ".join([PROGRAM, *[word for word in sys.argv[1:] if word in COMMANDS][:1]])


def _show_error(error: RemoteToolError) -> None:
    """Show an error as text, and with ``--json`` also on stdout unless the document was printed."""
    # --help does without these.
    from remote_tool.cli.output import json_output  # noqa: PLC0415
    from remote_tool.cli.output.console import show_error  # noqa: PLC0415

    words = sys.argv[1:]
    if "--json" in (words[: words.index("--")] if "--" in words else words):
        with suppress(OSError):
            json_output.print_error(error)
    show_error(error)


def _allow_many_servers() -> None:
    """Raise the limit of open files: a shell's usual 1024, or 256, is enough for few servers only."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(MOST_FILES, most)
    if usual != resource.RLIM_INFINITY and usual < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _know_own_name() -> None:
    """Set LOGNAME: the SSH library needs it for each connection, and a look-up may fail without free files."""
    if not any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        try:
            os.environ["LOGNAME"] = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            os.environ["LOGNAME"] = str(os.getuid())


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit as on Ctrl-C, so that connections, programs and temporary files are cleaned up."""
    sys.exit(streams.CLOSED_PIPE if streams.reader_gone.is_set() else 128 + number)
