"""Run a program with a script on stdin and a time limit."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time

from remote_tool.protocol.job_folder import write_all
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Tuple

_OUTPUT_LIMIT = 65536
# A cold start on a network disk is slow.
_PROGRAM_SECONDS = 20.0
NO_PROGRAM = "there is no such program on this server"
_SET_PIPE_SIZE, _GET_PIPE_SIZE = 1031, 1032


class ProgramOutput(NamedTuple):
    """A program's output; only the last part when long.

    Attributes:
        is_all: Whether the program ended in time.
    """

    output: bytes
    errors: bytes
    is_all: bool


def output_of(words: List[str], environment: Mapping[Any, Any], script: bytes = b"") -> str:
    """Return a program's stdout; empty when it cannot start, times out or prints too much."""
    ended = talk(words, script, environment, _PROGRAM_SECONDS)
    is_usable = ended.is_all and len(ended.output) < _OUTPUT_LIMIT
    return ended.output.decode("utf-8", "replace") if is_usable else ""


def talk(
    words: List[str], script: bytes, environment: Mapping[Any, Any], seconds: float, most: int = _OUTPUT_LIMIT
) -> ProgramOutput:
    """Run a program with a script on its stdin, and end it at end of output or timeout; return the last part."""
    opened: List[int] = []
    try:
        opened.append(open_script(script))
        opened += os.pipe()
        opened += os.pipe()
        source, output, write_output, errors, write_errors = opened
        actions: List[Tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, source, 0),
            (os.POSIX_SPAWN_DUP2, write_output, 1),
            (os.POSIX_SPAWN_DUP2, write_errors, 2),
        ]
        child = os.posix_spawnp(
            words[0], words, environment, file_actions=actions, setsigmask=(), setsigdef=(signal.SIGPIPE,)
        )
        for descriptor in (source, write_output, write_errors):
            opened.remove(descriptor)
            os.close(descriptor)
        try:
            return _read_both(output, errors, time.monotonic() + seconds, most)
        finally:
            _end(child)
    except OSError as error:
        why = NO_PROGRAM if is_missing(words[0], environment, error) else error.strerror or error
        return ProgramOutput(b"", f"{words[0]}: {why}".encode(), is_all=False)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def is_missing(program: str, environment: Mapping[Any, Any], error: OSError) -> bool:
    """Return whether a program could not be started because it is not on PATH.

    The system reports "Permission denied" when one of the folders on PATH is unreadable.
    """
    if isinstance(error, FileNotFoundError):
        return True
    if not isinstance(error, PermissionError) or "/" in program:
        return False
    folders = map(os.fsdecode, os.get_exec_path(environment))
    return not any(os.path.exists(os.path.join(folder, program)) for folder in folders)


def _read_both(output: int, errors: int, deadline: float, most: int) -> ProgramOutput:
    parts = {output: b"", errors: b""}
    is_open = {output, errors}
    poll = select.poll()
    for descriptor in is_open:
        poll.register(descriptor, select.POLLIN)
    while is_open:
        # select() takes no descriptor above 1023, and a stop keeps a folder open for each of its jobs.
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            break
        for descriptor, _ in ready:
            piece = os.read(descriptor, 65536)
            parts[descriptor] = (parts[descriptor] + piece)[-most:]
            if not piece:
                is_open.discard(descriptor)
                poll.unregister(descriptor)
    return ProgramOutput(parts[output], parts[errors], output not in is_open)


def _end(child: int) -> None:
    """Reap a program that has closed its output, or kill it."""
    for _ in range(50):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def open_script(script: bytes) -> int:
    """Return a descriptor of an in-memory file with a script; OSError when it does not fit."""
    read_end, write_end = os.pipe()
    try:
        # Nothing reads yet. A user with many pipes gets small ones that cannot grow.
        if len(script) > fcntl.fcntl(write_end, _GET_PIPE_SIZE):
            fcntl.fcntl(write_end, _SET_PIPE_SIZE, len(script))
        write_all(write_end, script)
    except OSError as error:
        os.close(read_end)
        raise OSError(f"no pipe takes the {len(script)} bytes that it is to read: {error.strerror}") from error
    finally:
        os.close(write_end)
    return read_end
