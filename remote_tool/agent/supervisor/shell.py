"""Run a user's command in a shell, and describe how it ended."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Mapping, NoReturn, Optional

# Grace period of processes that a finished command leaves behind.
LEFTOVER_GRACE = 5.0
# Shells keep their own descriptors at 10 and above, and can close those with one digit.
SCRIPT_DESCRIPTOR = 9
# Prefix of its messages.
_NAME = b"command"
# Children of an ending command that exit on their own within this time are not leftovers.
SETTLE_SECONDS = 0.5


class CommandEnd(NamedTuple):
    """How a command ended; all empty if no wait returned it."""

    exit_code: Optional[int] = None
    signal: Optional[str] = None
    core_dumped: bool = False


def run_shell(script: str, environment: Mapping[bytes, bytes]) -> NoReturn:
    """Exec a shell that runs a file: bash, or sh if missing."""
    for shell in _shells(environment):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.execve(shell, [os.path.basename(shell), os.fsencode(script)], environment)  # noqa: S606 - it is the shell
    raise _no_shell()


def run_open_script(script: int, environment: Mapping[bytes, bytes]) -> NoReturn:
    """Exec a shell that runs an open file."""
    os.dup2(script, SCRIPT_DESCRIPTOR)
    for shell in _shells(environment):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.execve(shell, loading_words(shell), environment)  # noqa: S606 - it is the shell
    raise _no_shell()


def spawn_shell(script: int, environment: Mapping[bytes, bytes]) -> int:
    """Start a shell that runs an open file, in its own session without stdin; return its pid.

    A fork would copy this process's memory, which takes longer than starting the shell.

    Args:
        script: Descriptor of the file.
        environment: The shell's environment.

    Raises:
        NotImplementedError: This system lacks support.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, script, SCRIPT_DESCRIPTOR),
    ]
    usual = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    for shell in _shells(environment):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            return os.posix_spawn(
                shell,
                loading_words(shell),
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=usual,
            )
    raise _no_shell()


def loading_words(shell: bytes) -> List[bytes]:
    """Return the arguments of a shell that reads its script from the descriptor and closes it for its children.

    If the descriptor were the script's name, each of the shell's messages would begin with it.
    """
    if os.path.basename(shell) == b"bash":
        # Debian's bash would read .bashrc for such a command, as our parent is sshd.
        return [b"bash", b"--norc", b"-c", b'eval "$(</proc/self/fd/%d)" %d<&-' % ((SCRIPT_DESCRIPTOR,) * 2), _NAME]
    return [b"sh", b"-c", b'eval "$(cat <&%d)" %d<&-' % ((SCRIPT_DESCRIPTOR,) * 2), _NAME]


def _shells(environment: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Yield possible paths of a shell; os.execvp would load more modules than the rest needs."""
    for folder in environment.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        yield os.path.join(folder, b"bash")
    yield from (b"/bin/bash", b"/bin/sh")


def _no_shell() -> OSError:
    return FileNotFoundError(errno.ENOENT, "there is no bash and no sh")


def restore_signals() -> None:
    """Reset signals for a command: Python ignores some, and we block some."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            # The C library reserves some numbers.
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def decode_status(status: Optional[int]) -> CommandEnd:
    """Return how a process ended from its wait status; None without one."""
    if status is None:
        return CommandEnd()
    if os.WIFSIGNALED(status):
        return CommandEnd(None, signal_name(os.WTERMSIG(status)), os.WCOREDUMP(status))
    return CommandEnd(os.WEXITSTATUS(status))


def describe_end(end: CommandEnd) -> str:
    """Describe how a command ended, to continue a sentence after a name."""
    if end.signal is not None:
        return f"was ended by {end.signal}"
    return f"ended with exit code {end.exit_code}"
