"""The state of the project that is sent, and what of it is not."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from remote_tool.protocol.limits import is_low
from remote_tool.readable import readable_size
from remote_tool.transport.sync import interrupted_sync
from remote_tool.transport.sync.project.look import LEADS_OUT
from remote_tool.transport.sync.snapshot import SelectionRules, take_snapshot
from remote_tool.workflows.events import Notice
from remote_tool.workflows.sync.first_sync import advice

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.transport.sync.contents import Snapshot
    from remote_tool.workflows.events import Report

SHOWN_NOTICES = 10


class ProjectSnapshot:
    """The state of the project that is sent, taken once for all servers when the first one needs it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.told = config.local.held_back
        self._is_first = not any(config.local.known_copy(server).exists() for server in config.servers)
        self.low: dict[str, tuple[int, int]] = {}
        self._task: asyncio.Task[Snapshot] | None = None

    def note_room(self, server: str, free: int, total: int) -> None:
        """Remember a server whose disk has less free than is wanted, with what is free and all that it has."""
        least = self._config.min_free
        if is_low(free, total, (least.bytes, least.hundredths)):
            self.low[server] = free, total

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

    def tell_advice(self, snapshot: Snapshot, report: Report, *, is_project: bool) -> None:
        """Tell, once and before the first sync of a project, what of it might better stay here."""
        is_first, self._is_first = self._is_first, False
        exclude_file = self._config.local.exclude if is_project else ""
        for line in advice(snapshot, readable_size, exclude_file) if is_first else []:
            report(Notice("", line))

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
        own_folders=(
            *(local.jobs_folder, local.logs_folder, remote.scripts_name, remote.jobs_name),
            *local.artifacts_in_project,
        ),
        private_keys=tuple(key for key in keys if key is not None),
        send_anyway=config.send_anyway,
        looked=local.looked,
        listing=local.listing,
    )


async def tell_skipped(project: ProjectSnapshot, report: Report, *, is_project: bool = True) -> None:
    """Tell once, not per server nor with each sync, what of the project is not sent."""
    skipped = (await project.get()).skipped
    lines = [f"not sent: {name} {why}".rstrip() for name, why in skipped]
    records = [line.encode(errors="surrogateescape") for line in lines]
    before = interrupted_sync.recall(project.told).split(b"\0")
    new = [line for line, record in zip(lines, records, strict=True) if record not in before]
    for line in new[:SHOWN_NOTICES]:
        report(Notice("", line))
    if len(new) > SHOWN_NOTICES:
        report(Notice("", f"not sent: {len(new) - SHOWN_NOTICES} more, listed in the logs of this step"))
    # What is said of links concerns the project: its folder on the servers is where commands begin.
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
        interrupted_sync.note(project.told, b"\0".join(records))
