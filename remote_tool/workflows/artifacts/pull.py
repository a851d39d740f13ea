"""Pull the requested files of jobs, from all servers in parallel."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.jobs.artifacts import ArtifactFolder, make_folder
from remote_tool.readable import counted, readable_size
from remote_tool.transport.pool import on_every
from remote_tool.workflows.artifacts.answer import PullAnswer
from remote_tool.workflows.artifacts.job_pull import JobPull
from remote_tool.workflows.artifacts.limits import DiskBudget
from remote_tool.workflows.artifacts.listing import list_files
from remote_tool.workflows.artifacts.transfer import fetch_files
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepProgress, StepStarted
from remote_tool.workflows.transfer_pace import TransferPace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.protocol.artifact_patterns import ArtifactPattern
    from remote_tool.workflows.artifacts.listing import ArtifactListing
    from remote_tool.workflows.artifacts.transfer import Transfer
    from remote_tool.workflows.context import Context

STEP = "artifacts"
LOCK_SECONDS = 30.0
PROGRESS_SECONDS = 0.1
SHOWN_NOTICES = 10


async def pull_artifacts(
    context: Context, jobs: Sequence[Job], patterns: Sequence[ArtifactPattern] = (), to: Path | None = None
) -> PullAnswer:
    """Pull files of jobs.

    Args:
        context: The command's context.
        jobs: The jobs.
        patterns: The files to pull; empty: those recorded for each job.
        to: A local folder, with a subfolder for each job; None: the configured one.
    """
    by_server: dict[str, list[JobPull]] = defaultdict(list)
    local = context.config.local if to is None else replace(context.config.local, artifacts_folder=to)
    budget = DiskBudget(local.artifacts_folder or local.jobs)
    for job in jobs:
        if job.server in context.config.servers:
            folder = ArtifactFolder.at(local.artifacts(job.id))
            by_server[job.server].append(JobPull(context.config, job, tuple(patterns) or job.artifacts, folder, budget))

    async def pull(server: str) -> None:
        if local.artifacts_folder is not None:
            make_folder(local.artifacts_folder)
        # Files in another folder may be deleted, so they do not make the artifacts of a job complete.
        await _ServerPull(context, server, by_server[server], complete=not patterns and to is None).run()

    results = await on_every(by_server, pull)
    return PullAnswer(tuple(each.answer() for pulls in by_server.values() for each in pulls), dict(results.errors))


class _ServerPull:
    """The pull from one server."""

    def __init__(self, context: Context, server: str, pulls: Sequence[JobPull], *, complete: bool) -> None:
        self._context = context
        self._server = server
        self._pulls = sorted(pulls, key=lambda each: each.job.id)
        self._complete = complete
        self._began = self._shown = time.monotonic()

    async def run(self) -> None:
        """List files, choose and fetch them, and record the jobs that have all of theirs here.

        Raises:
            JobError: The local disk is full, or the server's answer is invalid.
            ConnectError: The connection is lost; the next pull resumes from the downloaded parts.
        """
        patterns = {each.job.id: each.patterns for each in self._pulls}
        listings = await list_files(self._context, self._server, patterns)
        with ExitStack() as stack:
            for each in self._pulls:
                each.plan(listings[each.job.id])
                if each.changes_something:
                    await self._lock(stack, each)
            transfers = [transfer for each in self._pulls for transfer in each.transfers]
            if transfers:
                await self._fetch(transfers)
            for each in self._pulls:
                if each.changes_something:
                    each.finish()
        self._warn(listings)
        self._note_complete(listings)
        self._raise_if_no_space()

    async def _lock(self, stack: ExitStack, pull: JobPull) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                stack.enter_context(pull.folder.locked())
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"Another remote-tool is pulling the artifacts of job {pull.job.key}"
                    raise JobError(message, hint="When it is done: remote-tool job-pull", server=self._server) from None
                await asyncio.sleep(0.1)
            else:
                # The other program may have pulled some.
                pull.transfers = [each for each in pull.transfers if not pull.folder.has(each.file)]
                return

    async def _fetch(self, transfers: Sequence[Transfer]) -> None:
        report = self._context.report
        report(StepStarted(self._server, STEP))
        pace = TransferPace()

        def on_progress(name: str) -> None:
            if time.monotonic() - self._shown >= PROGRESS_SECONDS:
                self._shown = time.monotonic()
                done = sum(each.is_over for each in transfers)
                total = sum(each.file.stamp.size for each in transfers)
                sizes = pace.describe(sum(each.arrived for each in transfers), total)
                report(StepProgress(self._server, STEP, f"{sizes}, {done} of {len(transfers)} files {name}"))

        try:
            await fetch_files(self._context, self._server, transfers, on_progress)
        except Exception as error:
            report(StepEnded(self._server, STEP, Outcome.FAILED, _first_line(error), self._seconds))
            raise
        here = [each.file.stamp.size for each in transfers if each.is_here]
        files = counted(len(here), "file")
        report(StepEnded(self._server, STEP, Outcome.DONE, f"{files} ({readable_size(sum(here))})", self._seconds))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _warn(self, listings: Mapping[str, ArtifactListing]) -> None:
        """Report the files that are not pulled, with the reasons."""
        for each in self._pulls:
            listing = listings[each.job.id]
            texts = [f"{name} was not pulled: {why}" for name, why in each.left_out]
            if listing.error:
                texts.append(listing.error)
            if listing.is_cut:
                texts.append("too many files; pulled only the first ones. Use a narrower glob")
            if listing.shared and each.transfers:
                texts.insert(0, _explain_shared(listing))
            for text in texts[:SHOWN_NOTICES]:
                self._context.report(Notice(self._server, f"job {each.job.key}: {text}"))
            if len(texts) > SHOWN_NOTICES:
                rest = f"job {each.job.key}: {len(texts) - SHOWN_NOTICES} more files were not pulled"
                self._context.report(Notice(self._server, rest))

    def _note_complete(self, listings: Mapping[str, ArtifactListing]) -> None:
        done = [
            each.job.id
            for each in self._pulls
            if self._complete
            and not each.job.may_run
            and each.is_complete
            and listings[each.job.id].is_final
            # A job that this folder of jobs does not have may exist in its own one.
            and listings[each.job.id].missing_from in {"", each.job.folder_id}
        ]
        if done:
            self._context.registry.revise((job_id, _with_all_artifacts) for job_id in done)

    def _raise_if_no_space(self) -> None:
        missing = [file for each in self._pulls for file in each.no_space]
        if missing:
            sizes = readable_size(sum(file.stamp.size for file in missing))
            folder = self._pulls[0].budget.folder
            files = counted(len(missing), "file")
            message = (
                f"Not enough disk space in {folder} for {files} of {self._server} ({sizes}), such as {missing[0].path}"
            )
            raise JobError(message, hint=f"df -h {folder}", server=self._server)


def _explain_shared(listing: ArtifactListing) -> str:
    count = "1 of these files" if listing.shared == 1 else f"{listing.shared} of these files"
    return (
        f"another job that ran at the same time may have written {count}, such as {listing.example}; "
        "to keep them apart, have each job write to a folder named $REMOTE_TOOL_JOB_ID"
    )


def _with_all_artifacts(job: Job) -> Job:
    # A lost job may have been found meanwhile.
    return replace(job, artifacts_complete=not job.may_run)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
