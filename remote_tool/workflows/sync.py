"""rsync: send what changed in the project to every server at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.errors import ConnectionLostError
from remote_tool.transport.pool import on_every
from remote_tool.transport.rsync import Progress, PushOptions, PushResult, push
from remote_tool.transport.rsync_failures import BrokenSyncError
from remote_tool.transport.snapshot import SelectionRules, Snapshot, take_snapshot
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepOutput, StepProgress, StepStarted
from remote_tool.workflows.groups import Groups
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.step_logs import StepLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool, Results
    from remote_tool.transport.relayed import Relay
    from remote_tool.workflows.events import Report

STEP = "rsync"
# A line per this many seconds is enough for eyes.
PROGRESS_SECONDS = 0.1
KIBIBYTE = 1024
SHOWN_NOTICES = 10


@dataclass(frozen=True)
class SyncOptions:
    """How to send.

    Attributes:
        dry_run: Say what would be sent and removed, and change nothing.
        checksum: Compare contents: finds an edit that kept size and time.
        relay: Send to one server, and from there to the others, where there is enough to send.
    """

    dry_run: bool = False
    checksum: bool = False
    relay: bool = False


class ProjectSnapshot:
    """The state of the project that is sent, taken once for all servers when the first one needs it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._task: asyncio.Task[Snapshot] | None = None

    def begin(self) -> asyncio.Task[Snapshot]:
        """Take it now, while something else goes on."""
        if self._task is None:
            self._task = asyncio.create_task(take_snapshot(self._config.local.root, selection_rules(self._config)))
            # Whoever wants it hears of its error; where every login fails, nobody does.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def get(self) -> Snapshot:
        """Return it.

        Raises:
            SyncError: The project cannot be listed.
        """
        return await asyncio.shield(self.begin())

    def renew(self) -> None:
        """Take it anew for those who want it from now on: time has passed."""
        self._task = None

    def cancel(self) -> None:
        """Stop listing it, if nobody waits for it any more."""
        if self._task is not None:
            self._task.cancel()


def selection_rules(config: Config) -> SelectionRules:
    """Return what of the project is not sent."""
    local, remote = config.local, config.remote
    keys = (server.private_key for server in config.servers.values())
    return SelectionRules(
        exclude_file=local.exclude_file,
        own_folders=(local.jobs_folder, local.logs_folder, remote.scripts_name, remote.jobs_name),
        private_keys=tuple(key for key in keys if key is not None),
    )


async def sync(
    pool: HostPool, config: Config, servers: Sequence[str], options: SyncOptions, report: Report
) -> Results[PushResult]:
    """Send the project to all servers at once; a server whose link goes in the middle is tried once more."""
    project = ProjectSnapshot(config)
    chosen = choose_servers(config, servers)
    turns = Groups.recall(config).turns()

    project.begin()

    async def send(server: str, relay: Relay | None = None) -> PushResult:
        # Logging in and listing the project take about as long, so they go on together.
        host, _ = await asyncio.gather(pool.host(server), project.get())
        # Of those with one folder the first sends, and each of the others then finds that it has all.
        async with turns[server]:
            try:
                return await send_project(host, config, project, options, report, relay)
            except ConnectionLostError as error:
                report(Notice(server, f"{error}; trying again"))
                return await send_project(await pool.host(server), config, project, options, report, relay)

    try:
        if options.relay and not options.dry_run and len(chosen) > 1:
            from remote_tool.workflows.relay import relay_to_all  # noqa: PLC0415 - a relay is seldom asked for

            results = await relay_to_all(pool, config, chosen, send, report, checksum=options.checksum)
        else:
            results = await on_every(chosen, send)
        if results.values:
            await tell_skipped(project, report)
    finally:
        project.cancel()
    return results


async def tell_skipped(project: ProjectSnapshot, report: Report) -> None:
    """Tell once, not per server, what of the project is not sent."""
    skipped = (await project.get()).skipped
    for name, why in skipped[:SHOWN_NOTICES]:
        report(Notice("", f"not sent: {name} {why}".rstrip()))
    if len(skipped) > SHOWN_NOTICES:
        report(Notice("", f"not sent: {len(skipped) - SHOWN_NOTICES} more, named in the logs of this step"))


async def send_project(
    host: Host,
    config: Config,
    project: ProjectSnapshot,
    options: SyncOptions,
    report: Report,
    relay: Relay | None = None,
) -> PushResult:
    """Send the project to one server, told and logged as a step."""
    report(StepStarted(host.name, STEP))
    began = shown = time.monotonic()

    def on_progress(progress: Progress) -> None:
        nonlocal shown
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            text = f"{progress.files} of {progress.files_total} files, {readable_size(progress.bytes)} {progress.name}"
            report(StepProgress(host.name, STEP, text))

    with StepLog(config.local, host.name, STEP) as log:

        def on_output(data: bytes) -> None:
            report(StepOutput(host.name, STEP, log.write(data)))

        try:
            snapshot = await project.get()
            log.write(b"".join(f"not sent: {name} {why}\n".encode(errors="replace") for name, why in snapshot.skipped))
            wanted = PushOptions(
                dry_run=options.dry_run,
                checksum=options.checksum,
                on_waiting=lambda text: report(Notice(host.name, text)),
                begun=config.local.begun_sync(host.name),
                known=config.local.known_copy(host.name),
                relay=relay,
            )
            try:
                result = await push(host, config.remote, snapshot, wanted, on_progress, on_output)
            except BrokenSyncError as error:
                report(Notice(host.name, f"{_first_line(error)}; trying again"))
                result = await push(host, config.remote, snapshot, wanted, on_progress, on_output)
        except BaseException as error:
            report(StepEnded(host.name, STEP, Outcome.FAILED, _first_line(error), time.monotonic() - began))
            raise
        log.leave_nothing_if_silent()
    for warning in result.warnings:
        report(Notice(host.name, warning))
    outcome = Outcome.DONE if result.changed else Outcome.UNCHANGED
    report(StepEnded(host.name, STEP, outcome, describe(result, options), time.monotonic() - began))
    return result


def describe(result: PushResult, options: SyncOptions) -> str:
    """Say in a few words what was sent."""
    if not result.changed:
        return "nothing to send"
    would = "would send" if options.dry_run else "sent"
    removed = f", {'would remove' if options.dry_run else 'removed'} {len(result.removed)}" if result.removed else ""
    size = "" if options.dry_run else f" ({readable_size(result.bytes)})"
    if result.relayed:
        size = f" ({readable_size(result.bytes)} from here, {readable_size(result.relayed)} from {result.relayed_by})"
    files = "1 file" if len(result.sent) == 1 else f"{len(result.sent)} files"
    return f"{would} {files}{size}{removed}"


def readable_size(size: float) -> str:
    """1536 -> 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < KIBIBYTE:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= KIBIBYTE
    return f"{size:.1f} TiB"


def _first_line(error: BaseException | RemoteToolError) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
