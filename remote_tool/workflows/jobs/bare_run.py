"""Run a command on a server that is not prepared: a shell of the server runs it, and nothing of ours is needed."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from remote_tool.environments.step import ERRORS_TOO
from remote_tool.protocol.marks import DATA_PREFIX, SERVER_VARIABLE
from remote_tool.transport.host import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Channel, Exit, Host

CHUNK = 256 * 1024
WHERE = "in the project's folder if there is one, else in the home folder, without the environment"

# The command gets a session of its own, and ends with the client: then our stdin ends.
_RUN = """
begin() {
    session=; command -v setsid >/dev/null && session=setsid
    shell=sh; command -v bash >/dev/null && shell='bash --norc'
    exec $session $shell -c 'eval "$(cat <&9)" 9<&-' command
}
exec 3<&0 </dev/null
printf '%s\\n' "$command" | begin 9<&0 </dev/null 3<&- &
child=$!
{
    cat <&3
    kill -HUP "-$child" || kill -HUP "$child"
    sleep 5
    kill -KILL "-$child" || kill -KILL "$child"
} >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait "$child"
status=$?
kill "$watcher" 2>/dev/null
exit "$status"
"""


async def run_bare(
    host: Host, config: Config, request: Mapping[str, object], on_output: Callable[[str, Stream, bytes], None]
) -> Exit:
    """Run the command of a request, pass on its output, and return how it ended."""
    async with host.open(_script(host.name, config, request), label=str(request["command"])) as channel:
        await channel.start()
        await asyncio.gather(*(_copy(host.name, channel, stream, on_output) for stream in Stream))
        return await channel.wait()


async def _copy(server: str, channel: Channel, stream: Stream, on_output: Callable[[str, Stream, bytes], None]) -> None:
    while data := await channel.read(stream, CHUNK):
        on_output(server, stream, data)


def _script(server: str, config: Config, request: Mapping[str, object]) -> str:
    folders = dict.fromkeys((f"{config.remote.project}/{request['workdir']}", config.remote.project))
    enter = " || ".join([f'cd "$HOME"/{shlex.quote(folder)} 2>/dev/null' for folder in folders] + ['cd "$HOME"'])
    environment = request["environment"]
    assert isinstance(environment, dict)
    variables = {SERVER_VARIABLE: server, **environment}
    return "\n".join(
        [
            enter,
            *(f"export {name}={_quote(name, value)}" for name, value in variables.items()),
            f"command={shlex.quote(str(request['command']))}",
            ERRORS_TOO,
            _RUN,
        ]
    )


def _quote(name: str, value: str) -> str:
    is_in_home = name.startswith(DATA_PREFIX) and value.startswith("~/")
    return f'"$HOME"/{shlex.quote(value[2:])}' if is_in_home else shlex.quote(value)
