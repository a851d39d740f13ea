"""How a forked process becomes a user's command, and how that ended."""

from __future__ import annotations

import contextlib
import os
import signal

from .named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, NoReturn, Optional

# What a finished command leaves behind gets this long after SIGTERM.
LEFTOVER_GRACE = 5.0
# Children of a command that is just ending go by themselves, and are no leftovers.
SETTLE_SECONDS = 0.5


class End(NamedTuple):
    """How a command ended; nothing is known when no wait returned it."""

    exit_code: Optional[int] = None
    signal: Optional[str] = None
    core_dumped: bool = False


def run_shell(script: str, environment: Mapping[bytes, bytes]) -> NoReturn:
    """Become a shell that runs a file: bash, sh where there is none."""
    for shell in ("bash", "/bin/bash"):
        try:
            os.execvpe(shell, [shell, script], environment)  # noqa: S606 - it is the shell
        except (FileNotFoundError, PermissionError):
            continue
    os.execve("/bin/sh", ["sh", script], environment)  # noqa: S606 - it is the shell


def restore_signals() -> None:
    """Give a command the signals that a fresh process has: Python ignores some, and ours are blocked."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            # The C library keeps some numbers for itself.
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def decode_status(status: Optional[int]) -> End:
    """Return how a process ended by what a wait returned; None for one that no wait returned."""
    if status is None:
        return End()
    if os.WIFSIGNALED(status):
        return End(None, _signal_name(os.WTERMSIG(status)), os.WCOREDUMP(status))
    return End(os.WEXITSTATUS(status))


def describe_end(end: End) -> str:
    """Say how a command ended, to go on after a name."""
    if end.signal is not None:
        return f"was ended by {end.signal}"
    return f"ended with exit code {end.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
