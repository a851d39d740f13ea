"""Asking the program that runs on the servers: one channel per question, answers in frames."""

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
# Such an operation takes any Python of the server where ours is not there: half an environment has none.
ANY_PYTHON = "clean"
# A server that is logged in to and then says nothing for so long is given up.
LONGEST_SILENCE = 60.0
CHUNK = 256 * 1024
# A listener ends at once when its client is done with it.
END_SECONDS = 5.0
# What means something to a shell, as JSON can write it too; quotes and backslashes of a text are written so before.
_SHELL_SYNTAX = {ord(letter): f"\\u{ord(letter):04x}" for letter in " !#$%&'()*+;<=>?@^`|~\x7f"}
# Before each next try when the link was lost, in seconds.
PAUSES = (0.2, 0.4, 0.8)

# Reads {"name": "text"} from stdin, writes the files into the folder that is its first argument, and gives that folder
# the name that is its second: servers with one home may do so at once, and a folder with files in it stays.
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
    """The server has no project folder or no Python of ours."""


class SupervisorMissingError(JobError):
    """The server has no supervisor of our version; it can be sent."""


class ServerTroubleError(JobError):
    """The system of the server refused something, as a disk does that does not answer; it may pass."""


class NotBegunError(JobError):
    """The server refused, and says that nothing of what was asked for has begun."""


class NoAnswerError(JobError):
    """No answer came, or not in time; what the server did, or will still do, is not known."""


class Conversation:
    """One open question to a supervisor."""

    def __init__(self, host: Host, channel: Channel, nonce: str) -> None:
        self._host = host
        self._channel = channel
        self._reader = FrameReader(nonce)

    async def frames(self, *, silence: float | None = None) -> AsyncIterator[Frame]:
        """Yield what the supervisor says until it has said all.

        Args:
            silence: Seconds after which one that says nothing is given up; None: it may wait for something itself.

        Raises:
            JobError: It could not do what was asked.
            NoAnswerError: What came is not an answer.
            ConnectionLostError: The link went.
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
    """Take a channel that was given up for what it is: nobody knows what became of the request."""
    try:
        yield
    except RemoteCommandError as error:
        raise NoAnswerError(error.message, hint=error.hint, server=error.server) from error


def raise_for_status(server: str, status: int | None) -> None:
    """Raise what the statuses of :func:`control_script` mean."""
    if status in {NO_PROJECT, NO_PYTHON}:
        raise NotPreparedError(
            f"{server} is not prepared", hint=f"remote-tool prepare --server {server}", server=server
        )
    if status == NO_PYTHON_AT_ALL:
        raise JobError(f"{server} has no Python 3.8 or newer that could look", server=server)
    if status == NO_SUPERVISOR:
        raise SupervisorMissingError(f"{server} has no supervisor of this version", server=server)


def control_script(config: Config, operation: str = "") -> str:
    """Return the shell script that starts the supervisor's control program."""
    version = source_archive()[0]
    return (
        f"{_enter(config, operation)}"
        f"[ -d supervisor-{version} ] || exit {NO_SUPERVISOR}\n"
        f'REMOTE_TOOL_SUPERVISOR=1 exec "$python" -I -S supervisor-{version}/run_control.py\n'
    )


def _enter(config: Config, operation: str) -> str:
    """Return the lines that go to our folder and find our Python there, or any for an operation that needs no more."""
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
    """Return the line that asks for an operation.

    It comes before anybody knows who reads it: to any shell it is one word without a meaning, wherever it is cut.
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
    """Ask for an operation that answers in several frames; leaving the context ends it on the server.

    With see_its_end, which is for one that sends nothing more, it has ended there when the context is left.
    """
    nonce = secrets.token_hex(16)
    async with host.open(control_script(config, operation), label=f"supervisor: {operation}") as channel:
        with _no_answer():
            await channel.write(request_line(config, operation, request, nonce))
            await channel.start()
        yield Conversation(host, channel, nonce).frames(silence=silence)
        if see_its_end:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await channel.write_eof()
                    while await channel.read():
                        pass
                    await channel.wait()


async def call(
    host: Host, config: Config, operation: str, request: Mapping[str, Any], *, within: float | None = None
) -> dict[str, Any]:
    """Ask for an operation that has one answer; sends the supervisor where it is missing.

    Args:
        host: The server.
        config: The configuration.
        operation: What is asked for.
        request: Its fields.
        within: Seconds that it may take; None: as long as a silence.

    Raises:
        JobError: The server cannot do it.
        NoAnswerError: It does not answer, or not in time; whether it was done is not known.
        ConnectionLostError: The link went; whether it was done is not known.
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
    """Ask for an operation, and ask again over a new connection when the link went before the answer.

    For operations that may be asked for twice: to start a job that has an id, to stop it, to say how it is. From the
    second time on the request has ``again``: what the server finds not done, an earlier try may still be doing.

    Raises:
        JobError: The server cannot do it, or does not answer in time.
        ConnectionLostError: It may have been done, also when the server could not be reached any more after that.
        ConnectError: The server cannot be reached, and was not asked.
        NotPreparedError: It has nothing of ours, and was not asked.
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
    """Send the supervisor of this version; it appears whole, older ones stay for the jobs that run with them."""
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
