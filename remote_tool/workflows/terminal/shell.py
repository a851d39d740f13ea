"""shell: a shell or one program on a server, with the environment of ``run``; a kept shell is a job.

On a server without Python, it runs on a terminal of sshd's own, or with three plain streams.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.config.devices import check_devices, command_environment, devices_of
from remote_tool.config.limits import check_texts, check_workdir
from remote_tool.errors import ConnectionLostError, JobError, UsageError
from remote_tool.jobs.job import JobState, job_id_of
from remote_tool.protocol.limits import COMMAND, SHELL
from remote_tool.protocol.terminal import END, INPUT, WINDOW, MessageReader, read_window
from remote_tool.redaction import hide
from remote_tool.transport.host import Stream, UserTerminal
from remote_tool.workflows.agent_client import NoPythonError, NotPreparedError
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs.bare_run import CHUNK, END_OF_INPUT, WHERE, input_line, open_bare, status_of
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.selection import JobSelection, choose_one_server
from remote_tool.workflows.start.start import StartRequest, start_jobs
from remote_tool.workflows.status.link_news import LinkNews
from remote_tool.workflows.terminal.attach import Attached, attach_to
from remote_tool.workflows.terminal.session import SessionEnd, serve, serve_terminal, until_detached

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.jobs.job import Job
    from remote_tool.transport.host import Channel
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.terminal.session import Screen

KEPT = "shell:"
UNKNOWN_KIND = "dumb"


@dataclass(frozen=True)
class ShellRequest:
    """A shell, or one program.

    Attributes:
        command: Text for the shell; empty: the user's own shell, interactive.
        servers: One name, or none if the project has only one server.
        env: Environment variables of the command.
        devices: GPUs to expose, by number or UUID; empty: as configured.
        workdir: The working folder, relative to the project; None: as configured, else the project folder.
        keep: The name under which it runs on without a client; empty: it ends with its client.
    """

    command: str = ""
    servers: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    devices: tuple[str | int, ...] = ()
    workdir: str | None = None
    keep: str = ""

    def __post_init__(self) -> None:
        """Refuse an invalid request."""
        check_texts(self.command, self.env)
        check_workdir(self.workdir)
        check_devices(self.devices, self.env)
        hide(self.env.values())


@dataclass(frozen=True)
class ShellEnd:
    """The end of a shell.

    Attributes:
        server: The server.
        end: The end of the session.
        job: The job of a kept shell.
        ended_unseen: Whether a kept shell ended while the connection was lost.
    """

    server: str
    end: SessionEnd
    job: Job | None = None
    ended_unseen: bool = False


async def open_shell(context: Context, request: ShellRequest, screen: Screen) -> ShellEnd:
    """Open a shell on one server, or attach to a kept one, until it ends or the user leaves it.

    Raises:
        UsageError: Not one server is selected, or there is no terminal.
        JobError: The server cannot do it.
        ConnectError: The server cannot be reached, or the connection to a shell that is not kept was lost.
    """
    server = choose_one_server(context.config, request.servers, "A shell", "shell")
    if not screen.is_terminal and (request.keep or not request.command):
        subject = "--keep" if request.keep else "A shell"
        hint = f"remote-tool shell --server {server} -- COMMAND runs one without a terminal"
        raise UsageError(f"{subject} needs a terminal as stdin and stdout", hint=hint)
    if request.keep:
        attached = await _open_kept(context, server, request, screen)
        return ShellEnd(server, attached.end, attached.job, ended_unseen=attached.ended_unseen)
    try:
        end = await _run_shell(context, server, request, screen)
    except ConnectionLostError as error:
        message = f"The connection to {server} was lost, and the program there has been hung up"
        hint = f"remote-tool shell --server {server} --keep NAME starts a shell that survives this"
        raise ConnectionLostError(message, hint=hint, server=server) from error
    if end.exit_code is None and not end.is_detached:
        raise JobError(f"{server} closed the session without an exit status", server=server)
    return ShellEnd(server, end)


async def _run_shell(context: Context, server: str, request: ShellRequest, screen: Screen) -> SessionEnd:
    """Run a shell until it ends; on a server that is not prepared, it has no environment."""
    values = _as_request(context, server, request, screen)
    try:
        return await serve_terminal(context, server, "shell", values, screen)
    except NotPreparedError as error:
        kind = "program" if request.command else "shell"
        context.report(Notice(server, f"{error.message}: the {kind} runs {WHERE}"))
    try:
        return await serve_terminal(context, server, "bare_shell", {**values, "setup": ""}, screen)
    except NoPythonError:
        return await until_detached(screen, _serve_without_python(context, server, values, screen))


def _as_request(context: Context, server: str, request: ShellRequest, screen: Screen) -> dict[str, object]:
    config = context.config
    devices = devices_of(config.servers[server].devices, request.devices, request.env)
    variables = {**(screen.variables if screen.is_terminal else {}), **request.env}
    return {
        "command": request.command,
        "setup": config.setup_of(server),
        "workdir": config.workdir_for(request.workdir),
        "environment": command_environment(config.variables_of(server), variables, devices),
        "server": server,
        "entry": config.entry_of(server),
        "terminal": screen.is_terminal,
        "window": list(screen.window),
    }


async def _open_kept(context: Context, server: str, request: ShellRequest, screen: Screen) -> Attached:
    """Attach to the kept shell of this name, or start it if none is running."""
    tag = f"{KEPT}{request.keep}"
    selection = JobSelection(tags=(tag,), servers=(server,), stopped=True)
    answer = (await list_jobs(context, selection)).raise_if_any_failed()
    # A shell that another program is starting is started again under the same id, which starts nothing twice.
    started = [job for job in answer.jobs if job.state is not JobState.STARTING]
    running = [job for job in started if job.terminal and job.state is JobState.RUNNING]
    last = max(started, key=lambda job: (job.created_at, job.id), default=None)
    job = running[-1] if running else await _start_kept(context, server, request, screen, last)
    return await attach_to(context, job, screen)


async def _start_kept(context: Context, server: str, request: ShellRequest, screen: Screen, last: Job | None) -> Job:
    tag = f"{KEPT}{request.keep}"
    # The id follows from these, so another program that starts the shell now attaches to the same job.
    facts = (tag, server, context.config.remote.project, last.id if last else "")
    start = StartRequest(
        request.command or f"shell --keep {shlex.quote(request.keep)}",
        (server,),
        {**screen.variables, **request.env},
        (tag,),
        sync=False,
        devices=request.devices,
        workdir=request.workdir,
        terminal=COMMAND if request.command else SHELL,
        frozen=False,
        job_id=job_id_of(last.created_at if last else None, *facts),
    )
    answer = (await start_jobs(context, [start])).raise_if_any_failed()
    return answer.jobs[0]


async def _serve_without_python(
    context: Context, server: str, values: Mapping[str, object], screen: Screen
) -> SessionEnd:
    news = LinkNews(context, server)
    with news.waiting():
        host = await context.pool.host(server)
    async with open_bare(host, context.config, values, _terminal_of(screen)) as channel:
        await screen.begin()
        async with news.watching(host):
            return await serve(_send(channel, screen), _receive(channel, screen))


def _terminal_of(screen: Screen) -> UserTerminal | None:
    if not screen.is_terminal:
        return None
    return UserTerminal(screen.variables.get("TERM", UNKNOWN_KIND), *screen.window)


async def _send(channel: Channel, screen: Screen) -> SessionEnd:
    reader = MessageReader()
    while (data := await screen.next()) is not None:
        for kind, body in reader.feed(data):
            if kind == INPUT:
                await channel.write(body if screen.is_terminal else input_line(body))
            elif kind == END:
                await channel.write(END_OF_INPUT)
            elif kind == WINDOW:
                channel.resize(*read_window(body))
    return SessionEnd(is_detached=True)


async def _receive(channel: Channel, screen: Screen) -> SessionEnd:
    async def show(stream: Stream) -> None:
        while data := await channel.read(stream, CHUNK):
            await screen.show(stream, data)

    await asyncio.gather(*map(show, Stream))
    return SessionEnd(status_of(await channel.wait()))
