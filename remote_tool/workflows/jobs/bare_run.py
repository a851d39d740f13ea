"""Run a command on a server that is not prepared: a shell there runs it, and nothing of ours is needed."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from remote_tool.environments.step import ERRORS_TOO
from remote_tool.paths import shell_path
from remote_tool.protocol.marks import DATA_PREFIX, SERVER_VARIABLE
from remote_tool.protocol.terminal import LOGIN_SHELL
from remote_tool.transport.host import Stream
from remote_tool.transport.ssh.script import escape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Channel, Exit, Host, UserTerminal

CHUNK = 256 * 1024
WHERE = "in the project's folder if there is one, else in the home folder, without the environment"

SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "SEGV": 11, "PIPE": 13, "TERM": 15}
END_OF_INPUT = b".\n"

_SHELL = "shell=sh; command -v bash >/dev/null && shell='bash --norc'\n"
# The command gets a session of its own. It is the first line of its own input, so ps does not show it. Input comes in
# lines of ours, so that the end of the input differs from the end of the client, which ends the command. The process
# that passes input on tells its pid first: it has to end with the command, as a shell waits for a whole pipeline.
_WITHOUT_TERMINAL = f"""{_SHELL}
begin() {{
    session=; command -v setsid >/dev/null && session=setsid
    exec $session $shell -c 'IFS= read -r _command; eval "unset _command; $(printf %b "$_command")"' command
}}
feed() {{
    exec <&3 3<&- 2>/dev/null
    trap '' PIPE
    sh -c 'echo $PPID'
    while IFS= read -r line; do
        case $line in :*) printf %b "${{line#:}}" ;; *) exec >&- ;; esac
    done
    kill -HUP $$
}}
serve() {{
    IFS= read -r feeder
    exec 4<&0 </dev/null
    trap hang_up HUP
    begin <&4 4<&- &
    child=$!
    exec 4<&-
    wait "$child"
    status=$?
    kill -KILL "$feeder" 2>/dev/null
    exit "$status"
}}
hang_up() {{
    trap '' HUP
    kill -HUP "-$child" || kill -HUP "$child"
    for second in 1 2 3 4 5; do
        kill -0 "-$child" && sleep 1
    done
    kill -KILL "-$child" || kill -KILL "$child"
}} 2>/dev/null
exec 3<&0
feed | serve 3<&- &
server=$!
trap 'kill -HUP "$server"' HUP
exec 3<&- </dev/null 2>/dev/null
wait "$server"
"""


async def run_bare(
    host: Host, config: Config, request: Mapping[str, object], on_output: Callable[[str, Stream, bytes], None]
) -> Exit:
    """Run the command of a request, pass on its output, and return its exit."""
    async with open_bare(host, config, request) as channel:
        await channel.write(END_OF_INPUT)
        await asyncio.gather(*(_copy(host.name, channel, stream, on_output) for stream in Stream))
        return await channel.wait()


@asynccontextmanager
async def open_bare(
    host: Host, config: Config, request: Mapping[str, object], terminal: UserTerminal | None = None
) -> AsyncIterator[Channel]:
    """Start the command of a request, with a terminal of sshd's own if one is given; leaving the context ends it.

    An empty command stands for the user's own shell.
    """
    command = str(request["command"] or LOGIN_SHELL)
    script = _beginning(host.name, config, request)
    script += _WITHOUT_TERMINAL if terminal is None else _on_terminal(command)
    async with host.open(script, label=str(request["command"] or "shell"), terminal=terminal) as channel:
        await channel.start()
        if terminal is None:
            await channel.write(input_line(command.encode("utf-8", "surrogateescape") + b"\n"))
        yield channel


def input_line(data: bytes) -> bytes:
    """Return input of a command without a terminal, as the line that the script reads."""
    return b":" + escape(data) + b"\n"


def status_of(ended: Exit) -> int:
    """Return the exit status as shells report it: 128+N for signal N."""
    return 128 + SIGNALS.get(ended.signal, 0) if ended.status is None else ended.status


async def _copy(server: str, channel: Channel, stream: Stream, on_output: Callable[[str, Stream, bytes], None]) -> None:
    while data := await channel.read(stream, CHUNK):
        on_output(server, stream, data)


def _beginning(server: str, config: Config, request: Mapping[str, object]) -> str:
    project = config.remote_on(server).project
    folders = dict.fromkeys((f"{project}/{request['workdir']}", project))
    enter = " || ".join([f"cd {shell_path(folder)} 2>/dev/null" for folder in folders] + ['cd "$HOME"'])
    environment = request["environment"]
    assert isinstance(environment, dict)
    variables = {SERVER_VARIABLE: server, **environment}
    exports = [f"export {name}={_quote(name, value)}" for name, value in variables.items()]
    return "\n".join([enter, *exports, ERRORS_TOO, ""])


def _on_terminal(command: str) -> str:
    mark = f"command-{secrets.token_hex(16)}"
    return f"{_SHELL}exec $shell -c 'eval \"$(cat <&9)\" 9<&-' command 9<<'{mark}'\n{command}\n{mark}\n"


def _quote(name: str, value: str) -> str:
    is_in_home = name.startswith(DATA_PREFIX) and value.startswith("~/")
    return f'"$HOME"/{shlex.quote(value[2:])}' if is_in_home else shlex.quote(value)
