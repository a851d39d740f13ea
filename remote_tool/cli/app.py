"""Run the program: the only place that catches errors, and shows them as text."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from remote_tool.cli.output import streams
from remote_tool.cli.program import COMMANDS, PROGRAM, first_steps, make_program
from remote_tool.errors import MOST_FILES, RemoteToolError, SomeServersFailedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

# Typer has its own copy of click, whose place is private.
_CommandLineError: Any = typer.BadParameter.__base__
# Seconds until a signal that came during an import is handled.
_RETRY_SECONDS = 0.01
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_RIGHTS = {errno.EACCES, errno.EPERM}
_NO_TEMPORARY_FILE = "No usable temporary directory"


def main() -> NoReturn:
    """Run the program; show our errors as text, and exit with their status."""
    # Before anything opens a file that stays open.
    streams.replace_closed()
    _raise_on(signal.SIGTERM, _leave)
    _allow_many_servers()
    _set_logname()
    # Last: Ctrl-C between this and the try would print a traceback.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        _raise_on(signal.SIGINT, signal.default_int_handler)
    try:
        status = _run_program()
    except KeyboardInterrupt:
        status = streams.INTERRUPTED
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Python waits for threads now, and would print a traceback at Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


def _run_program() -> int:
    """Run the command and return its status; our errors are shown as text."""
    try:
        return _run_command()
    except RemoteToolError as error:
        _show_error(error)
        return error.exit_code if isinstance(error, SomeServersFailedError) else error.program_exit_code
    except (OSError, ImportError) as problem:
        explained = explain(problem)
        if explained is None:
            raise
        _show_error(explained)
        return explained.program_exit_code


def _run_command() -> int:
    """Parse the arguments and run the command; a usage error is shown like any other error."""
    try:
        return make_program()(prog_name=PROGRAM, standalone_mode=False) or 0
    except _CommandLineError as problem:
        if problem.message == (problem.ctx and problem.ctx.get_help()):
            streams.write_text(streams.ERR, first_steps() + "\n")
            return int(problem.exit_code)
        hint = f"{_command_of(problem)} --help"
        raise UsageError(problem.format_message().removesuffix("."), hint=hint) from None
    except typer.Abort:
        raise KeyboardInterrupt from None


def _command_of(problem: _CommandLineError) -> str:
    """Return the command with the wrong words; if the parser does not name it, the first word that is a command."""
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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _set_logname() -> None:
    """Set LOGNAME: the SSH library needs it for each connection, and a look-up may fail without free files."""
    if not any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        try:
            os.environ["LOGNAME"] = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            os.environ["LOGNAME"] = str(os.getuid())


def _raise_on(number: signal.Signals, leave: Callable[[int, FrameType | None], NoReturn]) -> None:
    """Leave on a signal, but not while Python's import system runs.

    There an exception may keep the lock of all imports, on which other threads would wait forever, or be lost in the
    callback of a weak reference.
    """

    def handle(_: int, frame: FrameType | None) -> None:
        if signal.getsignal(number) is not handle:
            return  # another signal was handled while this one waited
        interrupted = _outside(handle.__code__, frame)
        if interrupted is not None and interrupted.f_code.co_filename.startswith("<frozen importlib"):
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
        else:
            leave(number, frame)

    signal.signal(number, handle)


def _outside(handler: CodeType, frame: FrameType | None) -> FrameType | None:
    """Return the frame that a signal interrupted; on a busy machine it may interrupt the handler of one before it."""
    interrupted = frame
    while frame is not None:
        if frame.f_code is handler:
            interrupted = frame.f_back
        frame = frame.f_back
    return interrupted


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit as on Ctrl-C, so that connections, programs and temporary files are cleaned up."""
    sys.exit(streams.CLOSED_PIPE if streams.reader_closed.is_set() else 128 + number)


def explain(problem: OSError | ImportError) -> RemoteToolError | None:
    """Return the error for a problem of this machine that the user can fix, such as a full disk; None for a bug."""
    if _is_too_many_files(problem):
        return RemoteToolError("Too many files are open for this number of servers", hint=f"ulimit -n {MOST_FILES}")
    return None if isinstance(problem, ImportError) else _explain_file(problem)


def _explain_file(problem: OSError) -> RemoteToolError | None:
    if _NO_TEMPORARY_FILE in str(problem):
        # The module tempfile drops the cause.
        message = "Cannot create a temporary file: too many files are open, or the disk is full"
        return RemoteToolError(message, hint=f"ulimit -n {MOST_FILES}, or TMPDIR=FOLDER for a folder on another disk")
    place = os.fsdecode(problem.filename) if isinstance(problem.filename, str | bytes) else ""
    if problem.errno == errno.EBADF and streams.OUT in streams.closed_at_start:
        return RemoteToolError("Cannot write: standard output is closed", hint="To discard the output: >/dev/null")
    if problem.errno in _DISK:
        return RemoteToolError(f"Cannot write{place and f' {place}'}: {problem.strerror}", hint="df -h .")
    if problem.errno in _RIGHTS and place:
        return RemoteToolError(f"Cannot use {place}: {problem.strerror}", hint=f"ls -ld {place}")
    return None


def _is_too_many_files(problem: OSError | ImportError) -> bool:
    if isinstance(problem, ImportError):
        # The dynamic linker reports an extension module that it cannot open by text alone.
        return os.strerror(errno.EMFILE) in str(problem)
    return problem.errno == errno.EMFILE
