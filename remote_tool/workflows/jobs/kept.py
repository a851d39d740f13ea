"""Fetch the files that servers keep beside the output of jobs: stacks, the log of on_end, NCCL's flight records."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.logs import LogFolder
from remote_tool.protocol.job_folder import LARGEST_KEPT, MOST_KEPT, is_kept
from remote_tool.readable import readable_size
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import SupervisorMissingError, converse, provide_supervisor
from remote_tool.workflows.artifacts.answer import Artifact
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.transport.pool import Results
    from remote_tool.workflows.context import Context

SILENCE = 60.0
PORTION = 500


async def fetch_kept(context: Context, jobs: Sequence[Job]) -> Results[dict[str, list[Artifact]]]:
    """Fetch files that are new or have grown, from all servers in parallel; return all files by the id of the job."""
    by_server: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.server in context.config.servers and not job.cleaned:
            by_server[job.server].append(job)

    async def fetch(server: str) -> dict[str, list[Artifact]]:
        own = by_server[server]
        portions = [own[first : first + PORTION] for first in range(0, len(own), PORTION)]
        try:
            found = [await _fetch(context, server, portion) for portion in portions]
        except SupervisorMissingError:
            await provide_supervisor(await context.pool.host(server), context.config)
            found = [await _fetch(context, server, portion) for portion in portions]
        return {job_id: files for each in found for job_id, files in each.items()}

    return await on_every(by_server, fetch)


async def _fetch(context: Context, server: str, jobs: Sequence[Job]) -> dict[str, list[Artifact]]:
    kept_files = {job.id: _KeptFiles(LogFolder(context.registry.folder / job.id)) for job in jobs}
    request = {"jobs": [{"id": job_id, "have": each.logs.kept()} for job_id, each in kept_files.items()]}
    host = await context.pool.host(server)
    async with converse(host, context.config, "kept", request, silence=SILENCE) as frames:
        async for frame in frames:
            try:
                kept_files[str(frame.header.get("job"))].take(frame.header, frame.body)
            except (KeyError, ValueError) as error:
                raise JobError(f"{server}: cannot read the files that it keeps ({error})", server=server) from error
    for job in jobs:
        for name, size in kept_files[job.id].too_large.items():
            text = f"job {job.key}: {name} was not fetched: it has {readable_size(size)}"
            context.report(Notice(server, text))
    return {job_id: files for job_id, each in kept_files.items() if (files := each.files())}


class _KeptFiles:
    """The kept files of one job, which arrive one after the other; the server is not trusted."""

    def __init__(self, logs: LogFolder) -> None:
        self.logs = logs
        self._new: set[str] = set()
        self.too_large: dict[str, int] = {}
        self._name = ""
        self._part = bytearray()

    def take(self, header: Mapping[str, Any], body: bytes) -> None:
        """Add a piece of a file, and save the file when it is complete.

        Raises:
            ValueError: The piece is invalid.
        """
        name, size = header.get("name"), header.get("size")
        if not isinstance(name, str) or not is_kept(name) or type(size) is not int or size < 0:
            raise ValueError("a file has no name or size")
        if size > LARGEST_KEPT:
            self.too_large[name] = size
            return
        if name != self._name:
            self._name, self._part = name, bytearray()
        self._part += body
        if len(self._part) > size or len(self._new) >= MOST_KEPT:
            raise ValueError(f"{name} is too large")
        # A file that shrinks meanwhile never gets complete: the next fetch takes it.
        if len(self._part) == size:
            self.logs.keep(name, bytes(self._part))
            self._new.add(name)
            self._name = ""

    def files(self) -> list[Artifact]:
        """Return the files that are here."""
        here = sorted(self.logs.kept().items())
        return [Artifact(self.logs.folder / name, name, size, name in self._new) for name, size in here]
