"""Requests to the agent on a server: one channel per request, answers in frames."""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from remote_tool.errors import ConnectError, ConnectionLostError, JobError, RemoteCommandError, RemoteToolError
from remote_tool.protocol.framing import Frame, FrameReader, FramingError
from remote_tool.redaction import redact
from remote_tool.transport.host import Stream
from remote_tool.workflows.agent_program import (
    ANYWHERE,
    NO_PROJECT,
    NO_PYTHON,
    NO_PYTHON_AT_ALL,
    NO_SPACE,
    NO_SUPERVISOR,
    carried_files,
    control_script,
    install_script,
    source_archive,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Channel, Host
    from remote_tool.transport.pool import HostPool

# The processes that these operations start, now or later, outlast them, so they need the agent in a folder.
STARTING = {"start", "hold"}
# Seconds of silence after which a connected server is given up.
LONGEST_SILENCE = 60.0
CHUNK = 256 * 1024
# An operation ends at once when its client closes its stdin.
END_SECONDS = 5.0
# Characters special to a shell that JSON can escape; quotes and backslashes of strings are escaped first.
_SHELL_SYNTAX = {ord(letter): f"\\u{ord(letter):04x}" for letter in " !#$%&'()*+;<=>?@^`|~\x7f"}
# Pauses before retries after a lost connection, in seconds.
PAUSES = (0.2, 0.4, 0.8)

# Connections to servers that cannot store the agent: it is sent with each request.
_without_agent: WeakSet[Host] = WeakSet()


class NotPreparedError(JobError):
    """The server does not have the project folder, or the prepared Python."""


class NoPythonError(JobError):
    """The server has no Python that could run the agent."""


class SupervisorMissingError(JobError):
    """The server does not have this version of the agent, which can be sent."""


class ServerTroubleError(JobError):
    """A system error on the server, for example of a disk; it may be temporary."""


class NotBegunError(JobError):
    """The server refused the request, and nothing of it has begun."""


class NoSpaceError(NotBegunError):
    """The disk of the project has no space for the agent, or cannot be written."""


class NoAnswerError(JobError):
    """No answer has arrived in time; whether the request was carried out is unknown."""


class Conversation:
    """An open request to the agent.

    Attributes:
        nonce: The mark of its frames.
    """

    def __init__(self, host: Host, channel: Channel, nonce: str) -> None:
        self._host = host
        self._channel = channel
        self.nonce = nonce
        self._reader = FrameReader(nonce)

    async def send(self, data: bytes) -> None:
        """Send more data, once the first frame of the answer has arrived; wait while the channel is full."""
        with _as_no_answer():
            await self._channel.write(data)

    async def wait_for_end(self) -> None:
        """Wait for a short time until an operation that sends no more frames has ended on the server."""
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
        await self._raise_if_failed()

    async def _read(self, silence: float | None) -> bytes:
        try:
            with _as_no_answer():
                async with asyncio.timeout(silence):
                    return await self._channel.read(size=CHUNK)
        except TimeoutError:
            raise JobError(f"{self._host.name}: said nothing for {silence:.0f} s", server=self._host.name) from None

    def _raise_error(self, header: Mapping[str, Any]) -> None:
        if "error" in header and "job" not in header:
            # The server does not know what it is called here.
            message = str(header["error"]).replace(" on this server", f" on {self._host.name}")
            raise _error_type(header)(message, hint=str(header.get("hint", "")), server=self._host.name)

    async def _raise_if_failed(self) -> None:
        with _as_no_answer():
            stderr = await self._channel.read(Stream.ERR)
            ended = await self._channel.wait()
        raise_for_status(self._host.name, ended.status)
        if ended.status != 0:
            tail = redact(stderr.decode(errors="replace").strip())[-2000:]
            how = f"with status {ended.status}" if ended.status is not None else f"by SIG{ended.signal}"
            message = f"{self._host.name}: the control program ended {how}" + (f": {tail}" if tail else "")
            raise NoAnswerError(message, server=self._host.name)


def _error_type(header: Mapping[str, Any]) -> type[JobError]:
    if header.get("begun") is False:
        return NotBegunError
    return ServerTroubleError if header.get("errno", errno.EMFILE) != errno.EMFILE else JobError


@contextmanager
def _as_no_answer() -> Iterator[None]:
    """Raise NoAnswerError for a channel that was given up, as the result of the request is unknown."""
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
        text = f"{server} has no Python 3.8 or newer: only rsync, run, shell, gpus, and check work there"
        raise NoPythonError(text, hint=f"remote-tool prepare --server {server}", server=server)
    if status == NO_SUPERVISOR:
        raise SupervisorMissingError(f"{server} has no supervisor of this version", server=server)


@asynccontextmanager
async def open_agent(
    host: Host, config: Config, operation: str, request: Mapping[str, Any], nonce: str, *, label: str
) -> AsyncIterator[Channel]:
    """Start the control program of the agent with a request; leaving the context closes its stdin."""
    is_carried = host in _without_agent
    config = config.for_server(host.name)
    async with host.open(control_script(config, operation, is_carried=is_carried), label=label) as channel:
        with _as_no_answer():
            if is_carried:
                await channel.write(carried_files())
            await channel.write(request_line(config, operation, request, nonce))
            await channel.start()
        yield channel


def request_line(config: Config, operation: str, request: Mapping[str, Any], nonce: str) -> bytes:
    """Return the request line of an operation.

    Another shell may read it instead of the agent, in any parts: each is a single harmless word.
    """
    fields = {
        "nonce": nonce,
        "op": operation,
        "project": config.remote.project,
        "jobs_folder": config.remote.jobs,
        "scripts_folder": config.remote.scripts,
        **request,
    }
    text = json.dumps(fields, separators=(",", ":"))
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
    wait_for_end: bool = False,
) -> AsyncIterator[AsyncIterator[Frame]]:
    """Request an operation that answers in several frames; leaving the context ends it on the server.

    ``wait_for_end`` is for an operation that sends no more frames: it has ended on the server when the context is left.
    """
    async with open_conversation(host, config, operation, request) as conversation:
        yield conversation.frames(silence=silence)
        if wait_for_end:
            await conversation.wait_for_end()


@asynccontextmanager
async def open_conversation(
    host: Host, config: Config, operation: str, request: Mapping[str, Any]
) -> AsyncIterator[Conversation]:
    """Request an operation for which both sides send frames; leaving the context ends it on the server."""
    nonce = secrets.token_hex(16)
    async with open_agent(host, config, operation, request, nonce, label=f"supervisor: {operation}") as channel:
        yield Conversation(host, channel, nonce)


async def call(
    host: Host, config: Config, operation: str, request: Mapping[str, Any], *, within: float | None = None
) -> dict[str, Any]:
    """Request an operation with a single answer; send the agent if it is missing.

    Args:
        host: The server.
        config: The configuration.
        operation: The name of the operation.
        request: The fields of the request.
        within: The timeout in seconds; None: that of a silent server.

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
                await provide_supervisor(host, config, operation)
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
    """Request an operation; if the connection is lost before the answer, request it again over a new one.

    Only for operations that may be repeated: to start a job by id, to stop it, its status. A repeated request has
    ``again`` in it, as an earlier one may still be in progress on the server.

    Raises:
        JobError: The server cannot do it, or does not answer in time.
        ConnectionLostError: It may have been done, even if the server could not be reached again.
        ConnectError: The server cannot be reached, and has got no request.
        NotPreparedError: The server is not prepared, and has got no request.
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
            raise lost_answer(server, operation, error) from None
    assert lost is not None
    raise lost_answer(server, operation, lost)


def lost_answer(server: str, operation: str, error: RemoteToolError) -> ConnectionLostError:
    """Return the error for a request of which it is unknown whether it was carried out."""
    why = str(error).removeprefix(f"{server}: ")
    message = f"The answer of {server} to {operation!r} was lost, so it may have been done: {why}"
    return ConnectionLostError(message, hint="remote-tool job-list", server=server)


async def provide_supervisor(host: Host, config: Config, operation: str = "") -> None:
    """Send this version of the agent; if it cannot be stored, let operations run from memory that can.

    Raises:
        NoSpaceError: The operation starts processes that outlast it.
        NotPreparedError: The operation needs the project's folder.
    """
    try:
        await install_supervisor(host, config, operation)
    except NoSpaceError:
        if operation in STARTING:
            raise
        _without_agent.add(host)
    except NotPreparedError:
        if operation not in ANYWHERE:
            raise
        _without_agent.add(host)


async def install_supervisor(host: Host, config: Config, operation: str = "") -> None:
    """Send this version of the agent and store it as a whole; older versions are kept for their running jobs."""
    contents = json.dumps({name: data.decode() for name, data in source_archive()[1]}).encode()
    try:
        await host.run(
            install_script(config.for_server(host.name), operation), stdin=contents, label="send the supervisor"
        )
    except RemoteCommandError as error:
        raise_for_status(host.name, error.exit_status)
        if error.exit_status == NO_SPACE:
            why = error.stderr_tail.strip()
            message = f"{host.name}: the project's disk cannot be written: {why}"
            raise NoSpaceError(message, hint=f"remote-tool clean --server {host.name}", server=host.name) from error
        raise


async def _call_once(host: Host, config: Config, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
    async with converse(host, config, operation, request) as frames:
        async for frame in frames:
            return dict(frame.header)
    raise NoAnswerError(f"{host.name}: the supervisor gave no answer", server=host.name)
