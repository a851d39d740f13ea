"""prepare: bring environment, project, packages and agent up to date on all servers in parallel."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.config.environment import EnvironmentKind
from remote_tool.environments.choice import is_fulfilled, require_own_folders, require_rsync
from remote_tool.errors import ConnectError, EnvironmentSetupError
from remote_tool.transport.pool import on_every
from remote_tool.workflows.events import Outcome
from remote_tool.workflows.home_groups import Groups
from remote_tool.workflows.prepare.server import (
    ask_facts,
    bring_image,
    bring_supervisor,
    install_packages,
    send_project,
    set_up,
)
from remote_tool.workflows.prepare.shared_home import Sharing
from remote_tool.workflows.prepare.steps import ServerWork, StepResult
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.step_logs import remove_old_logs
from remote_tool.workflows.sync.adoption import adopts_folder
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.project import ProjectSnapshot, report_skipped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool, Results
    from remote_tool.workflows.events import Report
    from remote_tool.workflows.sync.options import OnLowDisk
    from remote_tool.workflows.sync.relay import Exchange

# Queries of a follower, and the seconds between two: a network disk may cache names for a minute.
MOST_QUERIES = 60
QUERY_PAUSE = 1.0


@dataclass(frozen=True)
class PrepareOptions:
    """Options of prepare, setup and update-packages.

    Attributes:
        force: Recreate the environment and reinstall the packages, even if they are up to date.
        relay: Send the project to one server, and from there to the others.
        overwrite: Also replace files that were changed on the server, or never sent.
        on_low_disk: Called with each server whose disk is low, and its free and total bytes.
    """

    force: bool = False
    relay: bool = False
    overwrite: bool = False
    on_low_disk: OnLowDisk | None = None


@dataclass(frozen=True)
class PreparedServer:
    """The result of preparing a server.

    Attributes:
        steps: In order, including those that were up to date.
        changed: Whether anything changed.
        seconds: The duration from the first query to the last step.
        warnings: Messages that are not failures, such as that a sync changed files under a running job.
        python: The version of the jobs' Python; empty if it is inside a container or launch command.
        follows: The server that did the work in the folder that both share, or empty.
    """

    server: str
    steps: tuple[StepResult, ...]
    changed: bool
    seconds: float
    warnings: tuple[str, ...] = ()
    python: str = ""
    follows: str = ""


async def prepare(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Results[PreparedServer]:
    """Prepare servers; if nothing has changed, this takes one query and one comparison of the project per server."""
    project = ProjectSnapshot(config, options.on_low_disk)
    exchange = _exchange(pool, config, servers, options, report)

    async def prepare_one(work: ServerWork) -> None:
        require_rsync(work.facts)
        if work.facts.free_kilobytes is not None and work.facts.total_kilobytes is not None:
            project.note_room(work.server, work.facts.free_kilobytes * 1024, work.facts.total_kilobytes * 1024)
        await set_up(work, force=options.force)
        if any(step.outcome is not Outcome.UNCHANGED for step in work.results):
            # Time has passed, so the project may have changed.
            project.renew()
        await send_project(work, project, SyncOptions(overwrite=options.overwrite, adopt=work.adopts), exchange)
        await install_packages(work, force=options.force)
        await bring_supervisor(work)

    try:
        async with exchange or nullcontext():
            work = _on_all(pool, config, servers, prepare_one, report, afterwards=bring_image)
            results = await project.while_listed(choose_servers(config, servers), work)
        if exchange is not None:
            exchange.tell()
        if results.values:
            await report_skipped(project, report)
    finally:
        project.cancel()
    return results


def _exchange(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Exchange | None:
    chosen = choose_servers(config, servers)
    if not options.relay or len(chosen) == 1:
        return None
    from remote_tool.workflows.sync.relay import Exchange  # noqa: PLC0415 - seldom needed

    return Exchange(pool, config, chosen, report)


async def setup(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Results[PreparedServer]:
    """Install the environment."""

    async def set_up_one(work: ServerWork) -> None:
        await set_up(work, force=options.force)

    return await _on_all(pool, config, servers, set_up_one, report)


async def update_packages(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Results[PreparedServer]:
    """Install the packages in requirements.txt, Pipfile, pyproject.toml or environment.yml."""

    async def update_one(work: ServerWork) -> None:
        if not is_fulfilled(work.config, work.facts):
            raise EnvironmentSetupError(
                f"{work.server} does not have the environment set in configs.yaml",
                hint=f"remote-tool setup --server {work.server}",
                server=work.server,
            )
        await install_packages(work, force=options.force)

    return await _on_all(pool, config, servers, update_one, report)


async def _on_all(
    pool: HostPool,
    config: Config,
    servers: Sequence[str],
    action: Callable[[ServerWork], Awaitable[None]],
    report: Report,
    *,
    afterwards: Callable[[ServerWork], Awaitable[None]] | None = None,
) -> Results[PreparedServer]:
    """Run an action on servers, one after another in a shared folder, then a follow-up on each server."""
    names = choose_servers(config, servers)
    download_lock = asyncio.Lock()
    reported: set[str] = set()
    sharing = Sharing(config)

    async def on_one(server: str) -> PreparedServer:
        started = time.monotonic()
        host = await pool.host(server)
        own_config = config.for_server(server)
        facts = await ask_facts(host, own_config)
        require_own_folders(facts)
        adopts = await adopts_folder(pool, own_config, server, facts.workspaces, facts.sync_state)
        async with sharing.slot(host, facts) as slot:
            if slot.follows is not None:
                facts = await _facts_of_follower(slot.follows, host, config)
            elif slot.has_waited:
                facts = await ask_facts(host, own_config)
            work = ServerWork(
                host,
                own_config,
                report,
                facts,
                download_lock,
                pool.prompter.allow,
                reported,
                follows=slot.leader,
                adopts=adopts,
            )
            await action(work)
        if afterwards is not None:
            await afterwards(work)
        steps = tuple(work.results)
        changed = any(step.outcome is not Outcome.UNCHANGED for step in steps)
        seconds = time.monotonic() - started
        return PreparedServer(
            server, steps, changed, seconds, tuple(work.warnings), _python_of_jobs(work), work.follows
        )

    results = await on_every(names, on_one)
    Groups.recall(config).with_found(sharing.found).remember(config)
    remove_old_logs(config.local)
    return results


async def _facts_of_follower(leader: Host, host: Host, config: Config) -> ServerFacts:
    """Query a server until it sees the work of another in the folder that both share, which may take a while."""
    try:
        expected = _facts_of_folder(await ask_facts(leader, config.for_server(leader.name), compare=True))
    except ConnectError:
        return await ask_facts(host, config.for_server(host.name))
    for _ in range(MOST_QUERIES):
        facts = await ask_facts(host, config.for_server(host.name), compare=True)
        if _facts_of_folder(facts) == expected:
            break
        await asyncio.sleep(QUERY_PAUSE)
    return facts


def _facts_of_folder(facts: ServerFacts) -> tuple[object, ...]:
    """Return the facts that are the same on all servers that share a folder."""
    return facts.activation, facts.packages, facts.sync_state, facts.sent_sha256, facts.has_supervisor


def _python_of_jobs(work: ServerWork) -> str:
    activation = work.facts.activation
    return activation.version if activation is not None and activation.kind != EnvironmentKind.INSIDE else ""
