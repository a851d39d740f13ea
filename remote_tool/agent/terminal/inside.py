"""A terminal behind a launch command: the shell inside reads its script from a named pipe, as stdin is the terminal."""

from __future__ import annotations

import fcntl
import os

from remote_tool.protocol.job_folder import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from remote_tool.agent.wrapper.wrapper import CommandWrapper

_ENGINES = {"docker", "podman", "nerdctl"}
_SET_PIPE_SIZE, _SMALLEST_PIPE = 1031, 65536


def words_for(command_wrapper: CommandWrapper, pipe: str, script: bytes, *, has_terminal: bool = True) -> List[str]:
    """Return the words that start a shell; it leaves stdin to the program and reads the script from a pipe."""
    quoted = "'" + pipe.replace("'", "'\\''") + "'"
    words = command_wrapper.words[:-1]
    load = f'eval "$(head -c {len(script)} {quoted})"'
    return [*(_with_terminal(words) if has_terminal else words), "-c", load]


def _with_terminal(words: List[str]) -> List[str]:
    """Ask a container engine for a terminal inside; other programs pass on the one that they have."""
    names = [os.path.basename(word) for word in words]
    engine = next((at for at, name in enumerate(names) if name in _ENGINES), None)
    if engine is None or names[engine + 1] == "compose":
        return words
    at = next((at for at in range(engine, len(words)) if words[at] in {"exec", "run"}), None)
    return words if at is None else [*words[: at + 1], "--tty", *words[at + 1 :]]


def offer_script(folder: str, script: bytes, name: str) -> str:
    """Create and fill the pipe, which this process has open to its end; return its path.

    Nothing of the script, which has the job's variables, comes to a disk.
    """
    path = f"{folder}/{name}"
    os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
    fcntl.fcntl(pipe, _SET_PIPE_SIZE, max(_SMALLEST_PIPE, len(script)))
    write_all(pipe, script)
    return path
