"""The ends of an attached program: a terminal or three pipes, and the client on this program's stdin and stdout."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from remote_tool.agent.requests import is_flag, is_text
from remote_tool.agent.terminal import device, inside
from remote_tool.agent.terminal.client import Client
from remote_tool.agent.terminal.terminal import Terminal
from remote_tool.protocol.setup_script import put_before_attached
from remote_tool.protocol.terminal import DEFAULT_WINDOW, LOGIN_SHELL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

    from remote_tool.agent.requests import Request
    from remote_tool.agent.wrapper.wrapper import CommandWrapper

_SIDES = 2


def open_shell(request: Request) -> ShellEnds:
    """Open the ends that a request asks for; an empty command is the user's shell."""
    window = request.get("window", _is_window, default=list(DEFAULT_WINDOW))
    has_terminal = request.get("terminal", is_flag, default=True)
    command = request.get("command", is_text) or LOGIN_SHELL
    setup = request.get("setup", is_text, default="")
    if setup:
        command = put_before_attached(command, setup, request.get("workdir", is_text, default=""))
    return ShellEnds(request.nonce, command, (window[0], window[1]), has_terminal=has_terminal)


class ShellEnds:
    """The program's ends, and the thread that serves its client.

    Attributes:
        command: What runs there.
    """

    def __init__(self, nonce: str, command: str, window: Tuple[int, int], *, has_terminal: bool) -> None:
        self.command = command
        self._has_terminal = has_terminal
        self._theirs: List[int] = []
        self._nonce = nonce
        self._window = window
        self._script = ""
        if has_terminal:
            opened = device.open_device(window)
            self._theirs = [opened.slave]
            self._terminal = Terminal({opened.master: 1}, opened.master, device=opened.master)
        else:
            pipes = [os.pipe() for _ in range(3)]
            self._theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
            for descriptor in (pipes[0][1], pipes[1][0], pipes[2][0]):
                os.set_blocking(descriptor, False)
            self._terminal = Terminal({pipes[1][0]: 1, pipes[2][0]: 2}, pipes[0][1])

    def complete(self, environment: Dict[bytes, bytes]) -> None:
        """Add the variables of a terminal to an environment."""
        if self._has_terminal:
            device.complete(environment)

    def words_for(self, command_wrapper: CommandWrapper, folder: str, script: bytes) -> List[str]:
        """Return the words of a launch command that leave stdin to the program."""
        self._script = inside.offer_script(folder, script, f".script-{os.urandom(8).hex()}")
        return inside.words_for(command_wrapper, self._script, script, has_terminal=self._has_terminal)

    def enter(self) -> None:
        """In the child, the first of its session: take the ends."""
        if self._has_terminal:
            device.take(self._theirs[0])
        else:
            for standard, descriptor in enumerate(self._theirs):
                os.dup2(descriptor, standard)

    def start(self) -> None:
        """Begin to serve the client, once the program has been forked; its end is a hang-up."""
        if not self._has_terminal:
            for descriptor in self._theirs:
                os.close(descriptor)
        client = Client(0, 1, _nothing, self._nonce)
        self._terminal.serve_alone(client, self._window, lambda: os.kill(os.getpid(), signal.SIGHUP))
        self._terminal.start()

    def finish(self, code: int) -> None:
        """Pass on the last output, and tell the client the exit status."""
        self._terminal.drain()
        self._terminal.finish({"exit_code": code, "signal": None})
        if self._script:
            with suppress(OSError):
                os.unlink(self._script)


def _is_window(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == _SIDES
        and all(type(each) is int and 0 < each < 1 << 16 for each in value)
    )


def _nothing() -> None:
    """The descriptors are this program's own."""
