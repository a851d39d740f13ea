"""run: run a command in the environment of servers, pass on its output, and return its exit status."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from remote_tool.config.devices import check_devices, command_environment, devices_of
from remote_tool.config.limits import check_texts, check_workdir
from remote_tool.errors import JobError, RemoteCommandError, UsageError
from remote_tool.protocol.framing import FrameReader, FramingError
from remote_tool.protocol.setup_script import put_before_attached
from remote_tool.redaction import hide, redact
from remote_tool.transport.host import Stream
from remote_tool.transport.pool import Results, on_every
from remote_tool.workflows.agent_client import (
    NotPreparedError,
    SupervisorMissingError,
    open_agent,
    provide_supervisor,
    raise_for_status,
)
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs.bare_run import WHERE, run_bare, status_of
from remote_tool.workflows.selection import choose_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.transport.host import Channel, Host
    from remote_tool.workflows.context import Context

OnOutput = Callable[[str, Stream, bytes], None]
CHUNK = 256 * 1024
LONGEST_GREETING = 16 * 1024 * 1024
BEGIN_SECONDS = 60.0


@dataclass(frozen=True)
class RunRequest:
    """A command to run on some servers.

    Attributes:
        command: Text for the shell.
        servers: Names; empty: all.
        env: Environment variables of the command.
        devices: GPUs to expose, by number or UUID; empty: as configured.
        workdir: The working folder, relative to the project; None: as configured, else the project folder.
        internet: Let it reach allowed hosts of the internet through this machine.
    """

    command: str
    servers: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    devices: tuple[str | int, ...] = ()
    workdir: str | None = None
    internet: bool = False

    def __post_init__(self) -> None:
        """Refuse an invalid request."""
        check_texts(self.command, self.env)
        if not self.command.strip():
            raise UsageError("--cmd is empty", hint="remote-tool run --cmd 'nvidia-smi'")
        check_workdir(self.workdir)
        check_devices(self.devices, self.env)
        hide(self.env.values())


class RunResult(int):
    """The exit status of a command on a server, 128+N for signal N, and its output.

    Attributes:
        stdout: The stdout; empty if it was passed to a callback.
        stderr: The stderr; empty if it was passed to a callback.
    """

    stdout: str
    stderr: str

    def __new__(cls, status: int, stdout: bytes = b"", stderr: bytes = b"") -> Self:
        """Create a result from bytes."""
        result = super().__new__(cls, status)
        result.stdout, result.stderr = (data.decode(errors="replace") for data in (stdout, stderr))
        return result

    @property
    def exit_code(self) -> int:
        """Return the exit status."""
        return int(self)

    def __repr__(self) -> str:
        return f"RunResult({int(self)}, stdout={self.stdout!r}, stderr={self.stderr!r})"

    def __str__(self) -> str:
        """Return the exit status as text."""
        return int.__repr__(self)


async def run_command(context: Context, request: RunRequest, on_output: OnOutput | None = None) -> Results[RunResult]:
    """Run a command on servers in parallel; its output is in the results, or goes to a callback."""

    async def run(server: str) -> RunResult:
        host = await context.pool.host(server)
        values = _as_values(context.config, server, request)
        kept = {Stream.OUT: bytearray(), Stream.ERR: bytearray()}

        def keep(_server: str, stream: Stream, data: bytes) -> None:
            kept[stream].extend(data)

        take = on_output or keep
        async with _way_out(context, host, wanted=request.internet) as variables:
            values["environment"] = {**values["environment"], **variables}
            try:
                status = await _run_on(context, host, values, take)
            except SupervisorMissingError:
                await provide_supervisor(host, context.config)
                status = await _run_on(context, host, values, take)
            except NotPreparedError as error:
                context.report(Notice(server, f"{error.message}: the command runs {WHERE}"))
                without_setup = {**values, "command": request.command}
                status = status_of(await run_bare(host, context.config, without_setup, take))
        return RunResult(status, *map(bytes, kept.values()))

    return await on_every(choose_servers(context.config, request.servers), run)


@asynccontextmanager
async def _way_out(context: Context, host: Host, *, wanted: bool) -> AsyncIterator[Mapping[str, str]]:
    """Open a way out through this machine, if one is wanted; yield its variables, and tell what was not reached."""
    if not wanted or context.config.servers[host.name].localhost:
        yield {}
        return
    from remote_tool.workflows.internet.way_out import way_out  # noqa: PLC0415 - seldom needed

    async with way_out(host, context.config, context.pool.prompter.allow) as way:
        yield way.variables
    if way.carried:
        context.report(Notice(host.name, way.carried))
    if way.problem:
        context.report(Notice(host.name, f"through this machine: {way.problem}"))


def with_statuses_checked(command: str, results: Results[RunResult]) -> Results[RunResult]:
    """Return the results; an exit status other than 0 is an error of its server."""
    failed: dict[str, RemoteToolError] = {
        server: RemoteCommandError(
            f"{server}: the command ended with exit code {status}", server=server, command=command, exit_status=status
        )
        for server, status in results.values.items()
        if status
    }
    values: dict[str, RunResult] = {server: status for server, status in results.values.items() if not status}
    return Results(values, {**results.errors, **failed})


def _as_values(config: Config, server: str, request: RunRequest) -> dict[str, Any]:
    devices = devices_of(config.servers[server].devices, request.devices, request.env)
    setup, workdir = config.setup_of(server), config.workdir_for(request.workdir)
    return {
        "command": put_before_attached(request.command, setup, workdir) if setup else request.command,
        "workdir": workdir,
        "environment": command_environment(config.variables_of(server), request.env, devices),
        "server": server,
        "entry": config.entry_of(server),
    }


async def _run_on(context: Context, host: Host, request: Mapping[str, object], on_output: OnOutput) -> int:
    nonce = secrets.token_hex(16)
    # Leaving the context closes the command's stdin, which ends its process tree: so does Ctrl-C.
    async with open_agent(host, context.config, "run", request, nonce, label=str(request["command"])) as channel:
        output = _CommandOutput(host.name, nonce, channel, on_output)
        # A TaskGroup would wrap a connection error; gather passes it on, and leaving ends the other task.
        began, _ = await asyncio.gather(output.copy(Stream.OUT), output.copy(Stream.ERR))
        ended = await channel.wait()
        if not began:
            raise_for_status(host.name, ended.status)
            reason = redact(output.greeting[Stream.ERR].decode(errors="replace").strip())[-2000:]
            raise JobError(f"{host.name}: the command was not started: {reason}", server=host.name)
        return status_of(ended)


class _CommandOutput:
    """Both output streams: possible output of startup files, then our mark, then the bytes of the command."""

    def __init__(self, server: str, nonce: str, channel: Channel, on_output: OnOutput) -> None:
        self._server = server
        self._nonce = nonce
        self._mark = b"\0" + nonce.encode() + b" run\n"
        self._channel = channel
        self._on_output = on_output
        self.greeting = {Stream.OUT: b"", Stream.ERR: b""}

    async def copy(self, stream: Stream) -> bool:
        """Pass on the bytes after the mark; return whether the mark came."""
        first = await self._read_greeting(stream)
        if first is None:
            if stream is Stream.OUT:
                self._raise_refusal()
            return False
        if first:
            self._on_output(self._server, stream, first)
        while data := await self._channel.read(stream, CHUNK):
            self._on_output(self._server, stream, data)
        return True

    async def _read_greeting(self, stream: Stream) -> bytes | None:
        """Skip the bytes before the mark; return those that came with it, None without a mark."""
        greeting, start = bytearray(), 0
        # If a startup file has joined the streams, nothing comes on stderr.
        limit = BEGIN_SECONDS if stream is Stream.OUT else None
        try:
            async with asyncio.timeout(limit):
                while data := await self._channel.read(stream, CHUNK):
                    greeting += data
                    found = greeting.find(self._mark, start)
                    if found >= 0:
                        return bytes(greeting[found + len(self._mark) :])
                    start = max(0, len(greeting) - len(self._mark))
                    if len(greeting) > LONGEST_GREETING:
                        raise JobError(
                            f"{self._server}: printed more than {LONGEST_GREETING} bytes before the command started",
                            server=self._server,
                        )
        except TimeoutError:
            message = f"{self._server}: the command did not start within {BEGIN_SECONDS:.0f} s"
            raise JobError(message, server=self._server) from None
        self.greeting[stream] = bytes(greeting)
        return None

    def _raise_refusal(self) -> None:
        """Raise the error in a frame that came in place of the mark."""
        try:
            frames = FrameReader(self._nonce).feed(self.greeting[Stream.OUT])
        except FramingError as error:
            message = f"{self._server}: not a valid answer: {error}"
            raise JobError(message, server=self._server) from error
        for frame in frames:
            if "error" in frame.header:
                message, hint = str(frame.header["error"]), str(frame.header.get("hint", ""))
                raise JobError(message, hint=hint, server=self._server)
