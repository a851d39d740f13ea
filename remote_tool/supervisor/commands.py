"""How a forked process becomes a user's command, and how that ended."""

from __future__ import annotations

import errno
import os

from .named_tuple import NamedTuple
from .signals import name_of, signal
from .suppressing import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping, NoReturn, Optional

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
    for shell in _shells(environment):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.execve(shell, [os.path.basename(shell), os.fsencode(script)], environment)  # noqa: S606 - it is the shell
    raise _no_shell()


def spawn_shell(script: int, seen_as: int, environment: Mapping[bytes, bytes]) -> int:
    """Start a shell that runs an open file, in a session of its own with nothing on its stdin; return its pid.

    Unlike a fork it copies none of this process's memory, which takes longer than the shell's own start.

    Args:
        script: A descriptor of the file.
        seen_as: The descriptor that the shell gets for it.
        environment: The shell's.

    Raises:
        NotImplementedError: This system cannot.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, script, seen_as),
    ]
    usual = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    for shell in _shells(environment):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            return os.posix_spawn(
                shell,
                [os.path.basename(shell), b"/proc/self/fd/%d" % seen_as],
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=usual,
            )
    raise _no_shell()


def _shells(environment: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Yield where a shell may be; to have os look for it would load more than all of this needs."""
    for folder in environment.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        yield os.path.join(folder, b"bash")
    yield from (b"/bin/bash", b"/bin/sh")


def _no_shell() -> OSError:
    return FileNotFoundError(errno.ENOENT, "there is no bash and no sh")


def restore_signals() -> None:
    """Give a command the signals that a fresh process has: Python ignores some, and ours are blocked."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            # The C library keeps some numbers for itself.
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def decode_status(status: Optional[int]) -> End:
    """Return how a process ended by what a wait returned; None for one that no wait returned."""
    if status is None:
        return End()
    if os.WIFSIGNALED(status):
        return End(None, name_of(os.WTERMSIG(status)), os.WCOREDUMP(status))
    return End(os.WEXITSTATUS(status))


def describe_end(end: End) -> str:
    """Say how a command ended, to go on after a name."""
    if end.signal is not None:
        return f"was ended by {end.signal}"
    return f"ended with exit code {end.exit_code}"
