"""rsync: send project changes to all servers in parallel."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from remote_tool.errors import AnotherWorkspaceError, ConnectionLostError, RemoteToolError
from remote_tool.jobs.registry import Registry
from remote_tool.readable import readable_size
from remote_tool.transport.pool import on_every
from remote_tool.transport.sync import last_sync
from remote_tool.transport.sync.failures import BrokenSyncError
from remote_tool.transport.sync.project.workspace import own_workspace
from remote_tool.transport.sync.push import Progress, PushResult, push
from remote_tool.transport.sync.push_options import PushOptions
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepOutput, StepProgress, StepStarted
from remote_tool.workflows.home_groups import Groups
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.step_logs import StepLog, remove_old_logs
from remote_tool.workflows.sync.options import SyncOptions, Through
from remote_tool.workflows.sync.project import ProjectSnapshot, report_skipped
from remote_tool.workflows.transfer_pace import TransferPace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool, Results
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.relayed import Relay
    from remote_tool.workflows.events import Report

# A line per this many seconds is enough to read.
PROGRESS_SECONDS = 0.1


async def sync(
    pool: HostPool,
    config: Config,
    servers: Sequence[str],
    options: SyncOptions,
    report: Report,
    through: Through | None = None,
) -> Results[PushResult]:
    """Send the project to all servers in parallel; retry once if a connection is lost."""
    project = ProjectSnapshot(config, options.on_low_disk)
    chosen = choose_servers(config, servers)
    turns = Groups.recall(config).turns()
    if not options.only_adds:
        options = replace(options, asks_to_adopt=pool.prompter.adopt)

    async def send(server: str, relay: Relay | None = None) -> PushResult:
        host = await pool.host(server)
        # Of servers sharing a folder, the first sends, and each of the others then finds everything there.
        async with turns[server]:
            try:
                return await send_project(host, config, project, options, report, relay)
            except ConnectionLostError as error:
                report(Notice(server, f"{error}; trying again"))
                return await send_project(await pool.host(server), config, project, options, report, relay)

    try:
        if options.relay and not options.dry_run and len(chosen) > 1:
            from remote_tool.workflows.sync.relay import relay_to_all  # noqa: PLC0415 - a relay is seldom asked for

            asked = through or Through(pool, config)
            sending = relay_to_all(asked, chosen, send, report, checksum=options.checksum)
        else:
            sending = on_every(chosen, send)
        results = await project.while_listed(chosen, sending)
        if any(not config.servers[server].localhost for server in results.values):
            await report_skipped(project, report, is_project=not options.only_adds)
    finally:
        project.cancel()
    remove_old_logs(config.local)
    return results


async def send_project(
    host: Host,
    config: Config,
    project: ProjectSnapshot,
    options: SyncOptions,
    report: Report,
    relay: Relay | None = None,
) -> PushResult:
    """Send the project to one server, as a step with progress and log."""
    if config.servers[host.name].localhost and not options.only_adds:
        return await _use_in_place(host.name, config, project, options, report)
    step, remote = options.step, config.remote_on(host.name)
    report(StepStarted(host.name, step))
    began = time.monotonic()
    on_progress = _progress_reporter(host.name, step, report)

    with StepLog(config.local, host.name, step.replace(" ", "-")) as log:

        def on_output(data: bytes) -> None:
            report(StepOutput(host.name, step, log.write(data)))

        async def listed() -> Snapshot:
            snapshot = await project.get()
            project.report_advice(snapshot, report, is_project=not options.only_adds)
            log.write(b"".join(f"not sent: {name} {why}\n".encode(errors="replace") for name, why in snapshot.skipped))
            return snapshot

        try:
            wanted = PushOptions(
                dry_run=options.dry_run,
                checksum=options.checksum,
                on_waiting=lambda text: report(Notice(host.name, text)),
                on_room=lambda free, total: project.note_room(host.name, free, total),
                begun=config.local.begun_sync(host.name),
                known=config.local.known_copy(host.name),
                relay=relay,
                overwrite=options.overwrite,
                only_adds=options.only_adds,
                # Only a sync of the project removes anything.
                workspace=None if options.only_adds else own_workspace(config.local),
                adopt=options.adopt,
            )
            try:
                # The server compares its copy while the project is listed.
                result = await push(host, remote, listed, wanted, on_progress, on_output)
            except (BrokenSyncError, AnotherWorkspaceError) as error:
                wanted = await _second_attempt(error, wanted, options, report)
                result = await push(host, remote, await project.get(), wanted, on_progress, on_output)
        except Exception as error:
            report(StepEnded(host.name, step, Outcome.FAILED, _first_line(error), time.monotonic() - began))
            raise
        log.remove_if_empty()
    if result.warnings:
        registry = Registry(config.local.jobs)
        result = replace(result, warnings=tuple(registry.with_keys(text) for text in result.warnings))
    for warning in result.warnings:
        report(Notice(host.name, warning))
    outcome = Outcome.DONE if result.changed else Outcome.UNCHANGED
    report(StepEnded(host.name, step, outcome, describe(result, options), time.monotonic() - began))
    return result


async def _use_in_place(
    server: str, config: Config, project: ProjectSnapshot, options: SyncOptions, report: Report
) -> PushResult:
    """List the project for jobs on this machine, as a step."""
    from remote_tool.workflows.sync.in_place import note_files  # noqa: PLC0415 - for this machine alone

    report(StepStarted(server, options.step))
    began = time.monotonic()
    try:
        snapshot = await project.get()
        if not options.dry_run:
            await asyncio.to_thread(note_files, server, config.remote_on(server), snapshot, config.artifacts)
            last_sync.note(config.local.known_copy(server), snapshot.copy)
    except RemoteToolError as error:
        report(StepEnded(server, options.step, Outcome.FAILED, _first_line(error), time.monotonic() - began))
        raise
    result = PushResult(server, snapshot.id)
    # Nothing is ever sent there, which is not news before each job.
    ended, seconds = describe(result, options), time.monotonic() - began
    report(StepEnded(server, options.step, Outcome.UNCHANGED, ended, seconds, is_internal=True))
    return result


async def _second_attempt(
    error: BrokenSyncError | AnotherWorkspaceError, wanted: PushOptions, options: SyncOptions, report: Report
) -> PushOptions:
    """Return the options with which to try again; raise the error if the user does not want that."""
    if isinstance(error, BrokenSyncError):
        report(Notice(error.server, f"{_first_line(error)}; trying again"))
        return wanted
    if options.asks_to_adopt is None or not await options.asks_to_adopt(error.question):
        raise error
    return replace(wanted, adopt=True)


def _progress_reporter(server: str, step: str, report: Report) -> Callable[[Progress], None]:
    """Return a throttled reporter of a transfer's progress."""
    pace, shown = TransferPace(), time.monotonic()

    def on_progress(progress: Progress) -> None:
        nonlocal shown
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            text = f"{progress.files} of {progress.files_total} files {progress.name}"
            report(StepProgress(server, step, f"{pace.describe(progress.done, progress.total)}, {text}"))

    return on_progress


def describe(result: PushResult, options: SyncOptions) -> str:
    """Summarize what was sent."""
    if not result.changed:
        return "nothing to send"
    would = "would send" if options.dry_run else "sent"
    removed = f", {'would remove' if options.dry_run else 'removed'} {len(result.removed)}" if result.removed else ""
    size = "" if options.dry_run else f" ({readable_size(result.bytes)})"
    if result.relayed:
        size = f" ({readable_size(result.bytes)} from here, {readable_size(result.relayed)} from {result.relayed_by})"
    files = "1 file" if len(result.sent) == 1 else f"{len(result.sent)} files"
    return f"{would} {files}{size}{removed}"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
