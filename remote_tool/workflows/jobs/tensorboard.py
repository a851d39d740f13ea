"""tensorboard: run TensorBoard here on event files that are fetched while jobs run."""

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
    """TensorBoard for some jobs.

    Attributes:
        selection: Which jobs, running or ended; by default all.
        port: Here; None: 6006, or the next free one.
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
        copies = _Copies(context, request.selection, Path(folder))
        if not await copies.update() and not copies.may_grow:
            pattern = EVENTS.glob.removeprefix("**/")
            raise UsageError(f"The selected jobs have written no event files ({pattern})", hint="remote-tool job-list")
        context.report(Notice("", "starting TensorBoard"))
        async with _running([*program, "--logdir", folder, *_at(request.port)], folder) as process:
            lines = _Lines(process)
            reading = asyncio.create_task(lines.read())
            updating = asyncio.create_task(_keep_updating(copies, request.interval))
            try:
                on_open(await lines.address())
                # Both run until canceled, unless they fail.
                await asyncio.wait({reading, updating}, return_when=asyncio.FIRST_COMPLETED)
                if updating.done():
                    updating.result()
                raise lines.end_of(await process.wait())
            finally:
                for task in (reading, updating):
                    task.cancel()
                await asyncio.wait({reading, updating})


async def _keep_updating(copies: _Copies, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        await copies.update()


class _Copies:
    """Local copies of event files that only grow, as TensorBoard reads them; a pulled file is replaced by a new one.

    Attributes:
        may_grow: Whether a selected job is still running, or its server could not be asked.
    """

    def __init__(self, context: Context, selection: JobSelection, folder: Path) -> None:
        self.may_grow = True
        self._context = replace(context, report=self._report)
        self._tell = context.report
        self._selection = replace(selection, running=True, stopped=True)
        self._folder = folder
        self._final: set[str] = set()
        self._said: set[str] = set()
        self._failing: set[str] = set()
        self._has_files = False
        self._is_first = True

    async def update(self) -> bool:
        """Fetch the event files of jobs that may have new ones; return whether there are any by now.

        Raises:
            UsageError: No job matches.
        """
        context = self._context
        errors = await refresh(context, servers_of_jobs(context, self._selection))
        known, _ = load_matching(context, self._selection)
        chosen = choose_jobs(known, self._selection)
        if not chosen:
            raise UsageError("No job matches", hint="remote-tool job-list --stopped")
        wanted = [job for job in chosen if job.id not in self._final and job.server not in errors]
        answer = await pull_artifacts(context, wanted, [EVENTS])
        failures = {**errors, **answer.errors}
        for pulled in answer.jobs:
            self._copy(pulled)
        self._final |= {job.id for job in wanted if not job.may_run and job.server not in failures}
        self.may_grow = any(job.may_run for job in chosen) or any(job.server in failures for job in chosen)
        self._report_failures(failures, chosen)
        self._is_first = False
        return self._has_files

    def _copy(self, pulled: PulledJob) -> None:
        name = _UNUSUAL.sub("_", "-".join(filter(None, (str(pulled.job.key), pulled.job.name))))
        for file in pulled.files:
            # They have all the job's files that are here and match, also after a pull that failed.
            self._has_files = True
            _append(file.path, self._folder / name / file.name)

    def _report(self, event: Event) -> None:
        """Pass on everything about the first fetch, then notices that are new."""
        if isinstance(event, Notice):
            is_new = event.text not in self._said
            self._said.add(event.text)
        else:
            is_new = self._is_first
        if is_new:
            self._tell(event)

    def _report_failures(self, failures: Mapping[str, RemoteToolError], chosen: Sequence[Job]) -> None:
        concerned = {job.server for job in chosen if job.id not in self._final} & failures.keys()
        for server in sorted(concerned - self._failing):
            self._tell(Notice(server, f"{failures[server]}; its event files are fetched when it answers"))
        for server in sorted(self._failing - failures.keys()):
            self._tell(Notice(server, "is answering again"))
        self._failing = concerned


def _append(source: Path, copy: Path) -> None:
    """Add what a file has more than its copy; one that has become shorter is copied again."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, copy.open("ab") as written:
        size = written.tell()
        if os.fstat(read.fileno()).st_size < size:
            written.truncate(0)
            size = 0
        read.seek(size)
        shutil.copyfileobj(read, written, _PIECE)


def _find_program() -> list[str]:
    """Return the command of TensorBoard: of this Python, or on PATH.

    Raises:
        UsageError: There is none.
    """
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    if program := shutil.which("tensorboard"):
        return [program]
    raise UsageError("TensorBoard is not installed on this machine", hint="pipx install tensorboard")


def _at(port: int | None) -> list[str]:
    # Without --port, it takes 6006 or one of the next.
    return ["--host", "localhost", *(["--port", str(port)] if port is not None else [])]


@asynccontextmanager
async def _running(command: Sequence[str], folder: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program, and end it with its children, even if we are killed; then nobody needs the folder."""
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
        # The number of a process that has ended may be another one's.
        if guard.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)
            await guard.wait()


class _Lines:
    """Lines that TensorBoard prints: its address, or why it ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._output = process.stdout
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last: deque[str] = deque(maxlen=3)

    async def read(self) -> None:
        """Read until the end, so that the program never waits for us."""
        rest = b""
        while data := await self._output.read(LONGEST_LINE):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-LONGEST_LINE:]
            for line in lines:
                self._take(line.decode(errors="replace").strip())
        self._take(rest.decode(errors="replace").strip())
        if not self._address.done():
            self._address.set_exception(self.end_of(None))

    async def address(self) -> str:
        """Return the address as soon as it is printed.

        Raises:
            JobError: It has ended, or takes too long.
        """
        try:
            return await asyncio.wait_for(self._address, START_SECONDS)
        except TimeoutError:
            raise JobError(f"TensorBoard did not start within {START_SECONDS:.0f} s") from None

    def end_of(self, status: int | None) -> JobError:
        """Return the error of a TensorBoard that has ended."""
        why = f": {' '.join(self._last)}" if self._last else ""
        how = "" if status is None else f" with status {status}"
        return JobError(f"TensorBoard has ended{how}{why}", hint="Choose another port with --port")

    def _take(self, line: str) -> None:
        found = _ADDRESS.search(line)
        if found and line.startswith("TensorBoard ") and not self._address.done():
            self._address.set_result(found[0])
        if line:
            self._last.append(line)
