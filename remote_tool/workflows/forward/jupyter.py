"""jupyter: run Jupyter Lab as a job on a server, and forward a port here to it."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from remote_tool.config.devices import check_devices
from remote_tool.config.limits import names_of
from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.jobs.job import JUPYTER_MARK, JobState
from remote_tool.paths import readable_folder
from remote_tool.protocol.marks import JOB_MARKER
from remote_tool.redaction import hide, redact
from remote_tool.workflows.events import Notice, ignore
from remote_tool.workflows.forward.addresses import HIGHEST_PORT
from remote_tool.workflows.forward.forward import ForwardRequest, Listener, forward
from remote_tool.workflows.jobs.follow import LONGEST_PAUSE, wait_for_jobs
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.jobs.run import RunRequest, run_command
from remote_tool.workflows.selection import JobSelection, choose_one_server
from remote_tool.workflows.slurm.scheduler import refuse_scheduled
from remote_tool.workflows.start.start import StartRequest, start_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_tool.config.model import Config
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.forward.session import Opened
    from remote_tool.workflows.jobs.run import RunResult

DEFAULT_PORT = 8888
START_SECONDS = 120.0
SOCKET = "jupyter.sock"
_IS_INSTALLED = (
    """python -c 'import importlib.util as u; print("jupyterlab is", "here" if u.find_spec("jupyterlab") else "not")'"""
)
# The job fails if the folder exists, so it is ours, and the runtime file with the token is in it alone.
# A stop signals all processes of the job, so the trap waits only for Jupyter's own end.
_COMMAND = """\
{mark}folder={folder}
mkdir -m 700 "$folder" || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 143' TERM
JUPYTER_RUNTIME_DIR="$folder" python -m jupyterlab --no-browser --allow-root \
--ServerApp.sock={socket} --ServerApp.sock_mode=0600
"""
_READ_RUNTIME_FILE = """\
count=0
until grep -q '"token"' {folder}/jpserver-*.json 2>/dev/null; do
    count=$((count + 1)); [ "$count" -lt 15 ] || exit 1
    sleep 0.2
done
echo {job}
cat {folder}/jpserver-*.json
"""


@dataclass(frozen=True)
class JupyterRequest:
    """A choice of the server that runs Jupyter Lab.

    Attributes:
        servers: One name, or none if the project has only one server.
        port: The port here; the next free one if it is in use. None: 8888.
        devices: GPUs to expose, by number or UUID, unless it is running already; empty: as configured.
    """

    servers: tuple[str, ...] = ()
    port: int | None = None
    devices: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an invalid request."""
        names_of(self.servers)
        check_devices(self.devices, {})
        if self.port is not None and not 0 <= self.port <= HIGHEST_PORT:
            raise UsageError(f"--port {self.port} is not a port", hint=f"A port is 1 to {HIGHEST_PORT}; 0 is any")


@dataclass(frozen=True)
class Notebook:
    """Jupyter Lab on a server, which can be reached here.

    Attributes:
        job: The job in which it runs.
        url: Its address here, with its token.
        opened: The port here.
        is_new: Whether it was started just now.
    """

    job: Job
    url: str = field(repr=False)
    opened: Opened
    is_new: bool


async def jupyter(context: Context, request: JupyterRequest, on_open: Callable[[Notebook], None]) -> None:
    """Find Jupyter Lab on a server, or start it, and forward a port to it until canceled or until it has ended.

    Raises:
        UsageError: Not one server is selected.
        JobError: It is not installed there, or does not start.
        ConnectError: The server cannot be reached.
    """
    server = choose_one_server(context.config, request.servers, "Jupyter Lab", "jupyter")
    refuse_scheduled(
        context.config, [server], "jupyter", "remote-tool shell --cmd 'srun --pty bash' opens a shell on a node"
    )
    found = await _find(context, server)
    job = found or await _start(context, server, request)
    page = await _wait_for_page(context, job)
    port = DEFAULT_PORT if request.port is None else request.port

    def opened(each: Opened) -> None:
        url = f"http://localhost:{each.listen.port}{page}"
        on_open(Notebook(job, url, each, is_new=found is None))

    target = _NotebookPaths.on(context, server, job.id).target
    await _forward(context, job, ForwardRequest((f"{port}:{target}",), (server,)), Listener(opened))


@dataclass(frozen=True)
class _NotebookPaths:
    """The paths of one notebook on its server.

    Attributes:
        folder: A folder private to the user; absolute, for the shell of the job.
        socket: The socket for Jupyter, short enough for the address of a socket.
        target: The socket for the agent, which connects to it.
    """

    folder: str
    socket: str
    target: str

    @classmethod
    def on(cls, context: Context, server: str, job_id: str) -> _NotebookPaths:
        """Return the paths of a job's notebook.

        They are on a disk of the server itself, as a home may be shared. Behind a launch command, they are in the
        project's folder: nothing else is certain to be the same inside and outside.
        """
        if context.config.entry_of(server) is None:
            folder = f"/tmp/remote-tool-{job_id}"  # noqa: S108 - made with mkdir, which fails if it exists
            return cls(folder, f"{folder}/{SOCKET}", f"{folder}/{SOCKET}")
        inside = f"{context.config.remote.jobs_name}/{job_id}/jupyter"
        project = readable_folder(context.config.remote_on(server).project)
        return cls(f"$PWD/{inside}", f"{inside}/{SOCKET}", f"{project}/{inside}/{SOCKET}")


async def _find(context: Context, server: str) -> Job | None:
    """Return the newest notebook that runs on a server, no matter from which laptop it was started."""
    answer = (await list_jobs(context, JobSelection(servers=(server,), hidden=True))).raise_if_any_failed()
    running = {JobState.STARTING, JobState.RUNNING}
    found = [job for job in answer.jobs if job.command.startswith(JUPYTER_MARK) and job.state in running]
    return max(found, key=lambda job: job.created_at, default=None)


async def _start(context: Context, server: str, request: JupyterRequest) -> Job:
    result = await _run(context, server, _IS_INSTALLED)
    if "jupyterlab is not" in result.stdout:
        message = f"{server}: Jupyter Lab is not installed in the environment there"
        raise JobError(message, hint=_install_hint(context.config, server), server=server)
    if "jupyterlab is here" not in result.stdout:
        why = redact(result.stderr.strip())[-500:] or f"exit code {result.exit_code}"
        raise JobError(f"{server}: cannot tell whether Jupyter Lab is installed: {why}", server=server)
    paths = _NotebookPaths.on(context, server, f"${JOB_MARKER}")
    start = StartRequest(
        _COMMAND.format(mark=JUPYTER_MARK, folder=paths.folder, socket=paths.socket),
        (server,),
        {"JUPYTER_TOKEN": secrets.token_hex(24)},
        sync=False,
        devices=request.devices,
        workdir="",
        name="jupyter",
        # Notebooks are edited, and stay in the project.
        frozen=False,
    )
    return (await start_jobs(context, [start])).raise_if_any_failed().jobs[0]


def _install_hint(config: Config, server: str) -> str:
    install = f"remote-tool run --server {server} --cmd 'pip install jupyterlab'"
    if config.servers[server].container is not None:
        # Only the home folder of a container is kept.
        return f"{install.replace('install ', 'install --user ')}, or use an image that has it"
    if config.entry_of(server) is not None:
        return install
    return f"{install}, or add jupyterlab to requirements.txt and run remote-tool prepare"


async def _wait_for_page(context: Context, job: Job) -> str:
    """Wait until a notebook has written its runtime file; return the path of its page, with its token.

    Raises:
        JobError: It has ended, or takes too long.
    """
    script = _READ_RUNTIME_FILE.format(folder=f'"{_NotebookPaths.on(context, job.server, job.id).folder}"', job=job.id)
    began, is_reported = time.monotonic(), False
    while time.monotonic() - began < START_SECONDS:
        output = (await _run(context, job.server, script)).stdout
        if page := _parse_page(output.rpartition(f"{job.id}\n")[2]):
            return page
        await _raise_if_ended(context, job)
        if not is_reported:
            is_reported = True
            context.report(Notice(job.server, f"waiting for Jupyter Lab, job {job.key}, to start"))
    message = f"{job.server}: Jupyter Lab did not start within {START_SECONDS:.0f} s"
    raise JobError(message, hint=f"remote-tool job-tail {job.key}", server=job.server)


def _parse_page(text: str) -> str:
    """Return the path of the page that a runtime file names; empty if the file is incomplete."""
    try:
        info = json.loads(text)
    except ValueError:
        return ""
    token, base = (info.get(name) for name in ("token", "base_url")) if isinstance(info, dict) else ("", "")
    if not isinstance(token, str) or not isinstance(base, str) or not base.startswith("/"):
        return ""
    hide([token])
    # A token that the user's own configuration of Jupyter has turned off is empty.
    return f"{quote(base)}lab" + (f"?token={quote(token, safe='')}" if token else "")


async def _raise_if_ended(context: Context, job: Job) -> None:
    answer = (await list_jobs(context, JobSelection(jobs=(job.id,), hidden=True))).raise_if_any_failed()
    if any(each.state.is_finished for each in answer.jobs):
        hint = f"remote-tool job-tail {job.key} --no-follow"
        raise JobError(f"{job.server}: Jupyter Lab, job {job.key}, has ended", hint=hint, server=job.server)


async def _run(context: Context, server: str, command: str) -> RunResult:
    results = await run_command(context, RunRequest(command, (server,), workdir=""))
    results.raise_if_any_failed()
    return results.values[server]


async def _forward(context: Context, job: Job, request: ForwardRequest, listener: Listener) -> None:
    """Forward to a job until it has ended."""
    forwarding = asyncio.create_task(forward(context, request, listener))
    ending = asyncio.create_task(_wait_for_end(context, job))
    try:
        await asyncio.wait({forwarding, ending}, return_when=asyncio.FIRST_COMPLETED)
        if forwarding.done():
            (await forwarding).raise_if_any_failed()
        else:
            await ending
            context.report(Notice(job.server, f"Jupyter Lab, job {job.key}, has ended; the port is closed"))
    finally:
        for task in (forwarding, ending):
            task.cancel()
        await asyncio.wait({forwarding, ending})


async def _wait_for_end(context: Context, job: Job) -> None:
    """Wait until a job has ended, no matter how long its server cannot be reached: the forward reports that."""
    while True:
        with suppress(RemoteToolError):
            answer = await wait_for_jobs(replace(context, report=ignore), JobSelection(jobs=(job.id,), hidden=True))
            if all(each.state.is_finished for each in answer.jobs):
                return
        await asyncio.sleep(LONGEST_PAUSE)
