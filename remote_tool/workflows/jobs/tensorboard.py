"""tensorboard: run TensorBoard here on event files, which are fetched while jobs run."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, RemoteToolError, UsageError
from remote_tool.protocol.artifact_patterns import ArtifactPattern
from remote_tool.system.guard import guarded
from remote_tool.workflows.artifacts.pull import pull_artifacts
from remote_tool.workflows.events import Event, Notice
from remote_tool.workflows.jobs.listing import load_matching, refresh, servers_of_jobs
from remote_tool.workflows.selection import JobSelection, choose_jobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.artifacts.answer import PulledJob
    from remote_tool.workflows.context import Context

EVENTS = ArtifactPattern("**/events.out.tfevents.*")
DEFAULT_INTERVAL = 10.0
START_SECONDS = 120.0
# Ctrl-C gives the work two seconds to end, and the guard gives TensorBoard one.
END_SECONDS = 1.7
LONGEST_LINE = 64 * 1024
_ADDRESS = re.compile(r"http://\S+")
_UNUSUAL = re.compile(r"[^\w.-]")
_PIECE = 1024 * 1024


@dataclass(frozen=True)
class TensorboardRequest:
    """A choice of the jobs that TensorBoard shows.

    Attributes:
        selection: The jobs, running or ended; by default all.
        port: The local port; None: 6006, or the next free one.
        interval: Seconds between two fetches.
    """

    selection: JobSelection = field(default_factory=JobSelection)
    port: int | None = None
    interval: float = DEFAULT_INTERVAL


async def tensorboard(context: Context, request: TensorboardRequest, on_open: Callable[[str], None]) -> None:
    """Fetch event files and run TensorBoard on them, until canceled; ``on_open`` gets its address.

    Raises:
        UsageError: TensorBoard is not installed, no job matches, or the selected jobs have no event files.
        JobError: TensorBoard does not start, or has ended.
    """
    program = _find_program()
    with tempfile.TemporaryDirectory(prefix="remote-tool-tensorboard-") as folder:
        event_files = _EventFiles(context, request.selection, Path(folder))
        if not await event_files.update() and not event_files.may_grow:
            pattern = EVENTS.glob.removeprefix("**/")
            raise UsageError(f"The selected jobs have written no event files ({pattern})", hint="remote-tool job-list")
        context.report(Notice("", "starting TensorBoard"))
        async with _run_guarded([*program, "--logdir", folder, *_address_options(request.port)], folder) as process:
            output = _TensorboardOutput(process)
            reading = asyncio.create_task(output.read())
            updating = asyncio.create_task(_keep_updating(event_files, request.interval))
            try:
                on_open(await output.address())
                # Both run until canceled, unless they fail.
                await asyncio.wait({reading, updating}, return_when=asyncio.FIRST_COMPLETED)
                if updating.done():
                    updating.result()
                raise output.error(await process.wait())
            finally:
                for task in (reading, updating):
                    task.cancel()
                await asyncio.wait({reading, updating})


async def _keep_updating(event_files: _EventFiles, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        await event_files.update()


class _EventFiles:
    """Copies of event files for TensorBoard, which keeps files open: they only grow, while a pull replaces files.

    Attributes:
        may_grow: Whether a selected job is still running, or its server could not be asked.
    """

    def __init__(self, context: Context, selection: JobSelection, folder: Path) -> None:
        self.may_grow = True
        self._context = replace(context, report=self._report)
        self._report_event = context.report
        self._selection = replace(selection, running=True, stopped=True)
        self._folder = folder
        self._final: set[str] = set()
        self._reported: set[str] = set()
        self._failing: set[str] = set()
        self._has_files = False
        self._is_first = True

    async def update(self) -> bool:
        """Fetch the event files of jobs that may have new ones; return whether there are any files now.

        Raises:
            UsageError: No job matches.
        """
        context = self._context
        errors = await refresh(context, servers_of_jobs(context, self._selection))
        known, _ = load_matching(context, self._selection)
        chosen = choose_jobs(known, self._selection)
        if not chosen:
            raise UsageError("No job matches", hint="remote-tool job-list --stopped")
        unfinished = [job for job in chosen if job.id not in self._final and job.server not in errors]
        answer = await pull_artifacts(context, unfinished, [EVENTS])
        failures = {**errors, **answer.errors}
        for pulled in answer.jobs:
            self._copy(pulled)
        self._final |= {job.id for job in unfinished if not job.may_run and job.server not in failures}
        self.may_grow = any(job.may_run for job in chosen) or any(job.server in failures for job in chosen)
        self._report_failures(failures, chosen)
        self._is_first = False
        return self._has_files

    def _copy(self, pulled: PulledJob) -> None:
        name = _UNUSUAL.sub("_", "-".join(filter(None, (str(pulled.job.key), pulled.job.name))))
        for file in pulled.files:
            # These are all matching files that are here, also after a pull that failed.
            self._has_files = True
            _append(file.path, self._folder / name / file.name)

    def _report(self, event: Event) -> None:
        """Report all events of the first fetch, then only new notices."""
        if isinstance(event, Notice):
            is_new = event.text not in self._reported
            self._reported.add(event.text)
        else:
            is_new = self._is_first
        if is_new:
            self._report_event(event)

    def _report_failures(self, failures: Mapping[str, RemoteToolError], chosen: Sequence[Job]) -> None:
        failing = {job.server for job in chosen if job.id not in self._final} & failures.keys()
        for server in sorted(failing - self._failing):
            self._report_event(Notice(server, f"{failures[server]}; its event files are fetched when it answers"))
        for server in sorted(self._failing - failures.keys()):
            self._report_event(Notice(server, "is answering again"))
        self._failing = failing


def _append(source: Path, copy: Path) -> None:
    """Append the new part of a file to its copy; copy a file again that has become shorter."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, copy.open("ab") as written:
        size = written.tell()
        if os.fstat(read.fileno()).st_size < size:
            written.truncate(0)
            size = 0
        read.seek(size)
        shutil.copyfileobj(read, written, _PIECE)


def _find_program() -> list[str]:
    """Return the command of TensorBoard: that of this Python, or the one on PATH.

    Raises:
        UsageError: There is none.
    """
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    if program := shutil.which("tensorboard"):
        return [program]
    raise UsageError("TensorBoard is not installed on this machine", hint="pipx install tensorboard")


def _address_options(port: int | None) -> list[str]:
    # Without --port, TensorBoard takes 6006 or one of the next.
    return ["--host", "localhost", *(["--port", str(port)] if port is not None else [])]


@asynccontextmanager
async def _run_guarded(command: Sequence[str], folder: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program; end it and its children, and remove the folder, even if this process is killed."""
    guard = await asyncio.create_subprocess_exec(
        *guarded(command, folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        limit=LONGEST_LINE,
    )
    assert guard.stdin is not None
    try:
        yield guard
    finally:
        guard.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(guard.wait(), END_SECONDS)
        # Another process may have the id of one that has ended.
        if guard.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)
            await guard.wait()


class _TensorboardOutput:
    """The output of TensorBoard: its address, or the reason why it ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._output = process.stdout
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last: deque[str] = deque(maxlen=3)

    async def read(self) -> None:
        """Read until the end, so that TensorBoard never waits for us."""
        rest = b""
        while data := await self._output.read(LONGEST_LINE):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-LONGEST_LINE:]
            for line in lines:
                self._take(line.decode(errors="replace").strip())
        self._take(rest.decode(errors="replace").strip())
        if not self._address.done():
            self._address.set_exception(self.error(None))

    async def address(self) -> str:
        """Return the address as soon as it is printed.

        Raises:
            JobError: TensorBoard has ended, or takes too long.
        """
        try:
            return await asyncio.wait_for(self._address, START_SECONDS)
        except TimeoutError:
            raise JobError(f"TensorBoard did not start within {START_SECONDS:.0f} s") from None

    def error(self, status: int | None) -> JobError:
        """Return the error for a TensorBoard that has ended."""
        why = f": {' '.join(self._last)}" if self._last else ""
        how = "" if status is None else f" with status {status}"
        return JobError(f"TensorBoard has ended{how}{why}", hint="Choose another port with --port")

    def _take(self, line: str) -> None:
        found = _ADDRESS.search(line)
        if found and line.startswith("TensorBoard ") and not self._address.done():
            self._address.set_result(found[0])
        if line:
            self._last.append(line)
