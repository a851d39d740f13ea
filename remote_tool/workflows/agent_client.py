"""Requests to the agent on a server: one channel per request, answers in frames."""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
import shlex
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from remote_tool.errors import ConnectError, ConnectionLostError, JobError, RemoteCommandError, RemoteToolError
from remote_tool.protocol.framing import Frame, FrameReader, FramingError
from remote_tool.redaction import redact
from remote_tool.transport.host import Stream
from remote_tool.workflows.agent_sources import source_archive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Channel, Host
    from remote_tool.transport.pool import HostPool

NO_PROJECT, NO_SUPERVISOR, NO_PYTHON, NO_PYTHON_AT_ALL = 96, 97, 98, 95
# These operations run with any Python of the server if ours is missing, as in an unfinished environment.
ANY_PYTHON = "clean"
# Seconds of silence after which a connected server is given up.
LONGEST_SILENCE = 60.0
CHUNK = 256 * 1024
# A listener ends at once when its client is done with it.
END_SECONDS = 5.0
# Characters special to a shell that JSON can escape; quotes and backslashes of strings are escaped first.
_SHELL_SYNTAX = {ord(letter): f"\\u{ord(letter):04x}" for letter in " !#$%&'()*+;<=>?@^`|~\x7f"}
# Pauses before retries after a lost connection, in seconds.
PAUSES = (0.2, 0.4, 0.8)

# Reads {"name": "text"} from stdin, writes the files into the folder in its first argument, and renames that folder
# to its second: servers with a shared home may do so at the same time, and an existing non-empty folder is kept.
_UNPACK = """
import json, os, sys
os.umask(0o077)
new, folder = sys.argv[1:]
for name, text in json.load(sys.stdin).items():
    path = os.path.join(new, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
try:
    os.rename(new, folder)
except OSError:
    if not os.path.isdir(folder):
        raise
"""


class NotPreparedError(JobError):
    """The server lacks the project folder or the prepared Python."""


class SupervisorMissingError(JobError):
    """The server lacks this version of the agent; it can be sent."""


class ServerTroubleError(JobError):
    """A system error on the server, such as an unresponsive disk; it may be temporary."""


class NotBegunError(JobError):
    """The server refused, and nothing requested has begun."""


class NoAnswerError(JobError):
    """No answer arrived in time; whether the request was carried out is unknown."""


class Conversation:
    """An open request to the agent.

    Attributes:
        nonce: Marks its frames.
    """

    def __init__(self, host: Host, channel: Channel, nonce: str) -> None:
        self._host = host
        self._channel = channel
        self.nonce = nonce
        self._reader = FrameReader(nonce)

    async def send(self, data: bytes) -> None:
        """Send more than the request, after the first frame of the answer; waits while the channel is full."""
        with _no_answer():
            await self._channel.write(data)

    async def see_its_end(self) -> None:
        """Wait briefly until an operation that sends nothing more has ended on the server."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._channel.write_eof()
                while await self._channel.read():
                    pass
                await self._channel.wait()

    async def frames(self, *, silence: float | None = None) -> AsyncIterator[Frame]:
        """Yield the frames of the answer until it is complete.

        Args:
            silence: Seconds of silence after which the server is given up; None: wait for ever.

        Raises:
            JobError: The server could not do it.
            NoAnswerError: The answer is invalid.
            ConnectionLostError: The connection was lost.
        """
        while data := await self._read(silence):
            try:
                frames = self._reader.feed(data)
            except FramingError as error:
                raise NoAnswerError(
                    f"{self._host.name}: not an answer of our supervisor: {error}", server=self._host.name
                ) from error
            for frame in frames:
                self._raise_error(frame.header)
                if frame.header.get("done"):
                    return
                yield frame
        await self._explain_silence()

    async def _read(self, silence: float | None) -> bytes:
        try:
            with _no_answer():
                async with asyncio.timeout(silence):
                    return await self._channel.read(size=CHUNK)
        except TimeoutError:
            raise JobError(f"{self._host.name}: said nothing for {silence:.0f} s", server=self._host.name) from None

    def _raise_error(self, header: Mapping[str, Any]) -> None:
        if "error" in header and "job" not in header:
            raise _kind_of(header)(str(header["error"]), hint=str(header.get("hint", "")), server=self._host.name)

    async def _explain_silence(self) -> None:
        with _no_answer():
            stderr = await self._channel.read(Stream.ERR)
            ended = await self._channel.wait()
        raise_for_status(self._host.name, ended.status)
        if ended.status != 0:
            tail = redact(stderr.decode(errors="replace").strip())[-2000:]
            how = f"with status {ended.status}" if ended.status is not None else f"by SIG{ended.signal}"
            message = f"{self._host.name}: the control program ended {how}" + (f": {tail}" if tail else "")
            raise NoAnswerError(message, server=self._host.name)


def _kind_of(header: Mapping[str, Any]) -> type[JobError]:
    if header.get("begun") is False:
        return NotBegunError
    return ServerTroubleError if header.get("errno", errno.EMFILE) != errno.EMFILE else JobError


@contextmanager
def _no_answer() -> Iterator[None]:
    """Report a channel that was given up as no answer: the result of the request is unknown."""
    try:
        yield
    except RemoteCommandError as error:
        raise NoAnswerError(error.message, hint=error.hint, server=error.server) from error


def raise_for_status(server: str, status: int | None) -> None:
    """Raise the error for an exit status of :func:`control_script`."""
    if status in {NO_PROJECT, NO_PYTHON}:
        raise NotPreparedError(
            f"{server} is not prepared", hint=f"remote-tool prepare --server {server}", server=server
        )
    if status == NO_PYTHON_AT_ALL:
        raise JobError(f"{server} has no Python 3.8 or newer that could look", server=server)
    if status == NO_SUPERVISOR:
        raise SupervisorMissingError(f"{server} has no supervisor of this version", server=server)


def control_script(config: Config, operation: str = "") -> str:
    """Return the shell script that starts the agent's control program."""
    version = source_archive()[0]
    return (
        f"{_enter(config, operation)}"
        f"[ -d supervisor-{version} ] || exit {NO_SUPERVISOR}\n"
        f'REMOTE_TOOL_SUPERVISOR=1 exec "$python" -I -S supervisor-{version}/run_control.py\n'
    )


def _enter(config: Config, operation: str) -> str:
    """Return the lines that change to our folder and find our Python, or any Python if the operation allows."""
    begin = f'cd "$HOME"/{shlex.quote(config.remote.scripts)} || exit {NO_PROJECT}\npython=./python\n'
    if operation != ANY_PYTHON:
        return f'{begin}[ -x "$python" ] || exit {NO_PYTHON}\n'
    others = '"$(command -v python3)" "$HOME"/miniconda3/bin/python "$HOME"/miniforge3/bin/python'
    is_new = "import sys; sys.exit(sys.version_info < (3, 8))"
    return (
        f"{begin}for other in ./python {others}; do\n"
        f'  [ -x "$other" ] && "$other" -I -S -c {shlex.quote(is_new)} </dev/null 2>&1 && python=$other && break\n'
        f"done\n"
        f'[ -x "$python" ] || exit {NO_PYTHON_AT_ALL}\n'
    )


def request_line(config: Config, operation: str, request: Mapping[str, Any], nonce: str) -> bytes:
    """Return the request line of an operation.

    It may reach any shell before the agent reads it: wherever it is cut, it is a single harmless word.
    """
    whole = {
        "nonce": nonce,
        "op": operation,
        "project": config.remote.project,
        "jobs_folder": config.remote.jobs,
        "scripts_folder": config.remote.scripts,
        **request,
    }
    text = json.dumps(whole, separators=(",", ":"))
    text = text.replace(r"\\", r"\u005c").replace(r"\"", r"\u0022")
    return text.translate(_SHELL_SYNTAX).encode() + b"\n"


@asynccontextmanager
async def converse(
    host: Host,
    config: Config,
    operation: str,
    request: Mapping[str, Any],
    *,
    silence: float | None = None,
    see_its_end: bool = False,
) -> AsyncIterator[AsyncIterator[Frame]]:
    """Request an operation that answers in several frames; leaving the context ends it on the server.

    ``see_its_end`` is for an operation that sends nothing more: it has ended on the server when the context is left.
    """
    async with open_conversation(host, config, operation, request) as conversation:
        yield conversation.frames(silence=silence)
        if see_its_end:
            await conversation.see_its_end()


@asynccontextmanager
async def open_conversation(
    host: Host, config: Config, operation: str, request: Mapping[str, Any]
) -> AsyncIterator[Conversation]:
    """Request an operation that both sides send frames for; leaving the context ends it on the server."""
    nonce = secrets.token_hex(16)
    async with host.open(control_script(config, operation), label=f"supervisor: {operation}") as channel:
        with _no_answer():
            await channel.write(request_line(config, operation, request, nonce))
            await channel.start()
        yield Conversation(host, channel, nonce)


async def call(
    host: Host, config: Config, operation: str, request: Mapping[str, Any], *, within: float | None = None
) -> dict[str, Any]:
    """Request an operation with a single answer; send the agent if missing.

    Args:
        host: The server.
        config: The configuration.
        operation: Its name.
        request: Its fields.
        within: Timeout in seconds; None: the timeout of a silent server.

    Raises:
        JobError: The server cannot do it.
        NoAnswerError: It does not answer in time; whether it was done is unknown.
        ConnectionLostError: The connection was lost; whether it was done is unknown.
    """
    within = LONGEST_SILENCE if within is None else within
    try:
        async with asyncio.timeout(within):
            try:
                return await _call_once(host, config, operation, request)
            except SupervisorMissingError:
                await install_supervisor(host, config, operation)
                return await _call_once(host, config, operation, request)
    except TimeoutError:
        message = f"{host.name}: no answer to {operation!r} within {within:.0f} s"
        raise NoAnswerError(message, server=host.name) from None


async def call_until_answered(
    pool: HostPool,
    config: Config,
    server: str,
    operation: str,
    request: Mapping[str, Any],
    *,
    within: float | None = None,
) -> dict[str, Any]:
    """Request an operation, and retry over a new connection if the connection is lost before the answer.

    For idempotent operations: starting a job by id, stopping it, its status. Retries have ``again`` in the request: an
    earlier try may still be in progress on the server.

    Raises:
        JobError: The server cannot do it, or does not answer in time.
        ConnectionLostError: It may have been done, even if the server could not be reached again.
        ConnectError: The server cannot be reached, and got no request.
        NotPreparedError: It is not prepared, and got no request.
    """
    lost: ConnectionLostError | None = None
    for pause in (*PAUSES, 0.0):
        try:
            return await call(await pool.host(server), config, operation, request, within=within)
        except ConnectionLostError as error:
            lost = error
            request = {**request, "again": True}
            await asyncio.sleep(pause)
        except (ConnectError, NotPreparedError) as error:
            if lost is None:
                raise
            raise _unanswered(server, operation, error) from None
    assert lost is not None
    raise _unanswered(server, operation, lost)


def _unanswered(server: str, operation: str, error: RemoteToolError) -> ConnectionLostError:
    why = str(error).removeprefix(f"{server}: ")
    message = f"The answer of {server} to {operation!r} was lost, so it may have been done: {why}"
    return ConnectionLostError(message, hint="remote-tool job-list", server=server)


async def install_supervisor(host: Host, config: Config, operation: str = "") -> None:
    """Send this version of the agent atomically; older versions are kept for their running jobs."""
    version, files = source_archive()
    folder = f"supervisor-{version}"
    script = (
        f"{_enter(config, operation)}"
        "umask 077\n"
        f"new={folder}.new.{secrets.token_hex(8)}\n"
        f"trap 'rm -rf \"$new\"' EXIT\n"
        f'"$python" -I -S -c {shlex.quote(_UNPACK)} "$new" {folder} || exit 1\n'
    )
    contents = json.dumps({name: data.decode() for name, data in files}).encode()
    try:
        await host.run(script, stdin=contents, label="send the supervisor")
    except RemoteCommandError as error:
        raise_for_status(host.name, error.exit_status)
        raise


async def _call_once(host: Host, config: Config, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
    async with converse(host, config, operation, request) as frames:
        async for frame in frames:
            return dict(frame.header)
    raise NoAnswerError(f"{host.name}: the supervisor gave no answer", server=host.name)
