"""The state of the project to send, and the files that are skipped."""

from __future__ import annotations

import asyncio
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from remote_tool.errors import RemoteToolError, SyncError
from remote_tool.protocol.limits import is_low
from remote_tool.readable import readable_size
from remote_tool.transport.pool import Results
from remote_tool.transport.sync import interrupted_sync
from remote_tool.transport.sync.project.look import LEADS_OUT
from remote_tool.transport.sync.project.snapshot import SelectionRules, take_snapshot
from remote_tool.workflows.events import Notice
from remote_tool.workflows.sync.first_sync import advice

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

    from remote_tool.config.model import Config
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.workflows.events import Report
    from remote_tool.workflows.sync.options import OnLowDisk

T = TypeVar("T")
SHOWN_NOTICES = 10


class ProjectSnapshot:
    """The state of the project to send, listed once for all servers when first needed."""

    def __init__(self, config: Config, on_low_disk: OnLowDisk | None = None) -> None:
        self._config = config
        self._on_low_disk = on_low_disk
        self.reported = config.local.held_back
        self._is_first = not any(
            config.local.known_copy(name).exists() for name, server in config.servers.items() if not server.localhost
        )
        self._task: asyncio.Task[Snapshot] | None = None

    def note_room(self, server: str, free: int, total: int) -> None:
        """Report a server with low disk space, with its free and total bytes."""
        least = self._config.min_free
        if self._on_low_disk and is_low(free, total, (least.bytes, least.hundredths)):
            self._on_low_disk(server, (free, total))

    def begin(self) -> asyncio.Task[Snapshot]:
        """List it in the background."""
        if self._task is None:
            self._task = asyncio.create_task(_list_project(self._config))
            # Its error is raised by get; if every login fails, nothing needs it.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def get(self) -> Snapshot:
        """Return the snapshot.

        Raises:
            SyncError: The project cannot be listed.
        """
        return await asyncio.shield(self.begin())

    async def while_listed(self, servers: Iterable[str], work: Coroutine[Any, Any, Results[T]]) -> Results[T]:
        """Work on servers; if the project cannot be listed, end the work: that is the error of each of them."""
        listing, working = self.begin(), asyncio.create_task(work)
        try:
            await asyncio.wait((working, listing), return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and isinstance(error := listing.exception(), RemoteToolError):
                return Results({}, dict.fromkeys(servers, error))
            return await working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def report_advice(self, snapshot: Snapshot, report: Report, *, is_project: bool) -> None:
        """Report, once and before the first sync of a project, files that might better be excluded."""
        is_first, self._is_first = self._is_first, False
        exclude_file = self._config.local.exclude if is_project else ""
        for line in advice(snapshot, readable_size, exclude_file) if is_first else []:
            report(Notice("", line))

    def renew(self) -> None:
        """List it again for later callers: time has passed."""
        self._task = None

    def cancel(self) -> None:
        """Cancel the listing, if it is not needed any longer."""
        if self._task is not None:
            self._task.cancel()


async def _list_project(config: Config) -> Snapshot:
    return await take_snapshot(config.local.root, await rules_and_ignored(config))


async def rules_and_ignored(config: Config) -> SelectionRules:
    """Return the rules for skipped files, with what git ignores where the project asks for it.

    Raises:
        SyncError: Git cannot list it.
    """
    rules, root = selection_rules(config), config.local.root
    if not config.respect_gitignore:
        return rules
    from remote_tool.workflows.git_state import list_ignored  # noqa: PLC0415 - few projects ask for it

    ignored = await list_ignored(root)
    if ignored is None:
        raise SyncError(
            f"git cannot list what it ignores in {root}, as respect_gitignore: true asks for",
            hint=f"git -C {shlex.quote(str(root))} status; or remove respect_gitignore from configs.yaml",
        )
    return replace(rules, ignored=tuple(ignored))


def selection_rules(config: Config) -> SelectionRules:
    """Return the rules for skipped files."""
    local, remote = config.local, config.remote
    keys = (server.private_key for server in config.servers.values())
    return SelectionRules(
        exclude_file=local.exclude_file,
        own_folders=(
            *(local.jobs_folder, local.logs_folder, remote.scripts_name, remote.jobs_name),
            *local.artifacts_in_project,
            *_installers_in_project(config),
        ),
        private_keys=tuple(key for key in keys if key is not None),
        send_anyway=config.send_anyway,
        looked=local.searched_files,
        listing=local.listing,
    )


def _installers_in_project(config: Config) -> Iterator[str]:
    """Yield the installers of conda that are files of the project: ``prepare`` sends them where they are needed."""
    environments = (config.environment, *(server.environment for server in config.servers.values()))
    for file in {each.installer.file for each in environments if each is not None and each.installer is not None}:
        place = None if file is None else Path(os.path.normpath(file))
        if place is not None and place.is_relative_to(config.local.root):
            yield str(place.relative_to(config.local.root))


async def report_skipped(project: ProjectSnapshot, report: Report, *, is_project: bool = True) -> None:
    """Report skipped files once, not per server or per sync."""
    skipped = (await project.get()).skipped
    lines = [f"not sent: {name} {why}".rstrip() for name, why in skipped]
    records = [line.encode(errors="surrogateescape") for line in lines]
    before = interrupted_sync.recall(project.reported).split(b"\0")
    new = [line for line, record in zip(lines, records, strict=True) if record not in before]
    for line in new[:SHOWN_NOTICES]:
        report(Notice("", line))
    if len(new) > SHOWN_NOTICES:
        report(Notice("", f"not sent: {len(new) - SHOWN_NOTICES} more, listed in the logs of this step"))
    # Warnings about links apply to the project, whose folder on servers is where commands start.
    if links := [line for line in new if is_project and line.endswith(LEADS_OUT)]:
        name = links[0].removeprefix("not sent: ").removesuffix(f" {LEADS_OUT}")
        make = shlex.quote(f"ln -s /path/there {shlex.quote(name)}")
        report(
            Notice(
                "",
                f"copy the target of {name} into the project, or create a link on the servers, which syncs keep:"
                f" remote-tool run --cmd {make}",
            )
        )
    if records != before and (records or before != [b""]):
        interrupted_sync.note(project.reported, b"\0".join(records))
