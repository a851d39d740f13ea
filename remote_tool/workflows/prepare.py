"""prepare: environment, project, packages and supervisor on every server at once; only what is not there yet."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.config.model import EnvironmentKind
from remote_tool.environments.choice import plan_environment, require_own_folders, require_rsync
from remote_tool.environments.facts import facts_script, parse_facts
from remote_tool.environments.image import PRESENT, check_script, plan_pull
from remote_tool.environments.packages import find_package_file, fingerprint, plan_packages
from remote_tool.environments.wish import is_fulfilled
from remote_tool.errors import ConnectError, EnvironmentSetupError
from remote_tool.supervisor.sources import source_archive
from remote_tool.transport.pool import on_every
from remote_tool.workflows.events import Notice, Outcome
from remote_tool.workflows.groups import Groups
from remote_tool.workflows.run_steps import ServerWork, StepResult
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.sharing import Sharing
from remote_tool.workflows.supervisor import install_supervisor
from remote_tool.workflows.sync import ProjectSnapshot, SyncOptions, describe, send_project, tell_skipped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool, Results
    from remote_tool.transport.relayed import Relay
    from remote_tool.transport.rsync import PushResult
    from remote_tool.workflows.events import Report
    from remote_tool.workflows.relay import Exchange

FACTS_TIMEOUT = 60.0
# A network disk may go on for a minute with what it knew of a name.
MOST_LOOKS = 60
LOOK_PAUSE = 1.0
COMPLETE = "complete "


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare.

    Attributes:
        force: Make the environment and install the packages anew, though they are there.
        relay: Send the project to one server, and from there to the others, where there is enough to send.
    """

    force: bool = False
    relay: bool = False


@dataclass(frozen=True)
class PreparedServer:
    """What was done on a server.

    Attributes:
        steps: In their order, also those that had nothing to do.
        changed: Whether anything was done.
        seconds: From the first question to the last step.
        warnings: What is worth knowing, such as a sync that changed files under a running job.
    """

    server: str
    steps: tuple[StepResult, ...]
    changed: bool
    seconds: float
    warnings: tuple[str, ...] = ()


async def prepare(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Results[PreparedServer]:
    """Make servers ready for jobs; a second time, with nothing changed, one question and rsync's own comparison."""
    project = ProjectSnapshot(config)
    exchange = _exchange(pool, config, servers, options, report)

    async def prepare_one(work: ServerWork) -> None:
        require_rsync(work.facts)
        await _set_up(work, options)
        if any(step.outcome is not Outcome.UNCHANGED for step in work.results):
            # That took its time, and somebody may have worked on the project meanwhile.
            project.renew()
        await _send_project(work, project, exchange)
        await _install_packages(work, options)
        await _bring_supervisor(work)

    project.begin()
    try:
        async with exchange or nullcontext():
            results = await _on_all(pool, config, servers, prepare_one, report, afterwards=_bring_image)
        if exchange is not None:
            exchange.tell()
        if results.values:
            await tell_skipped(project, report)
    finally:
        project.cancel()
    return results


def _exchange(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Exchange | None:
    chosen = choose_servers(config, servers)
    if not options.relay or len(chosen) == 1:
        return None
    from remote_tool.workflows.relay import Exchange  # noqa: PLC0415 - a relay is seldom asked for

    return Exchange(pool, config, chosen, report)


async def setup(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Results[PreparedServer]:
    """Install the environment."""

    async def set_up_one(work: ServerWork) -> None:
        await _set_up(work, options)

    return await _on_all(pool, config, servers, set_up_one, report)


async def update_packages(
    pool: HostPool, config: Config, servers: Sequence[str], options: PrepareOptions, report: Report
) -> Results[PreparedServer]:
    """Install what requirements.txt, Pipfile, pyproject.toml or environment.yml asks for."""

    async def update_one(work: ServerWork) -> None:
        if not is_fulfilled(work.config, work.facts):
            raise EnvironmentSetupError(
                f"{work.server} does not have the environment that configs.yaml asks for",
                hint=f"remote-tool setup --server {work.server}",
                server=work.server,
            )
        await _install_packages(work, options)

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
    """Do an action in turn where servers have one folder, and what comes afterwards on each machine by itself."""
    names = choose_servers(config, servers)
    one_download = asyncio.Lock()
    sharing = Sharing(config)

    async def on_one(server: str) -> PreparedServer:
        started = time.monotonic()
        host = await pool.host(server)
        own_config = config.for_server(server)
        facts = await ask_facts(host, own_config)
        require_own_folders(facts)
        async with sharing.turn(host, facts) as turn:
            if turn.follows is not None:
                facts = await _facts_of_follower(turn.follows, host, config)
            elif turn.has_waited:
                facts = await ask_facts(host, own_config)
            work = ServerWork(host, own_config, report, facts, one_download, follows=turn.leader)
            await action(work)
        if afterwards is not None:
            await afterwards(work)
        steps = tuple(work.results)
        changed = any(step.outcome is not Outcome.UNCHANGED for step in steps)
        return PreparedServer(server, steps, changed, time.monotonic() - started, tuple(work.warnings))

    results = await on_every(names, on_one)
    Groups.recall(config).with_found(sharing.found).remember(config)
    return results


async def _facts_of_follower(leader: Host, host: Host, config: Config) -> ServerFacts:
    """Ask a server what it has when another one has worked in their folder; a network disk may show it late."""
    try:
        wanted = _in_folder(await ask_facts(leader, config.for_server(leader.name), compare=True))
    except ConnectError:
        return await ask_facts(host, config.for_server(host.name))
    for _ in range(MOST_LOOKS):
        facts = await ask_facts(host, config.for_server(host.name), compare=True)
        if _in_folder(facts) == wanted:
            break
        await asyncio.sleep(LOOK_PAUSE)
    return facts


def _in_folder(facts: ServerFacts) -> tuple[object, ...]:
    """Return what all servers with one folder must see alike."""
    return facts.activation, facts.packages, facts.sync_state, facts.sent_sha256, facts.has_supervisor


async def ask_facts(host: Host, config: Config, *, probe: bool = False, compare: bool = False) -> ServerFacts:
    """Ask a server what it has, in one round trip.

    Raises:
        EnvironmentSetupError: It does not tell.
    """
    script = facts_script(config, source_archive()[0], probe=probe, compare=compare)
    answer = await host.run(script, timeout=FACTS_TIMEOUT, label="what is there")
    return parse_facts(host.name, answer.stdout)


async def _set_up(work: ServerWork, options: PrepareOptions) -> None:
    """Make the environment that is wished, unless it is there."""
    _tell_what_ends_jobs(work)
    if (work.follows or not options.force) and is_fulfilled(work.config, work.facts):
        work.unchanged("environment", f"{_named(work)}{_whose(work)}")
        return
    if work.follows:
        raise _useless_here(work)
    if not work.facts.probed:
        work.facts = await ask_facts(work.host, work.config, probe=True)
    plan = plan_environment(work.config, work.facts, force=options.force)
    if plan.installer is not None:
        from remote_tool.workflows.bring_installer import bring_installer  # noqa: PLC0415 - HTTP is seldom needed

        await bring_installer(work, plan.installer)
    for step in plan.steps:
        await work.run(step)
    work.facts = await ask_facts(work.host, work.config)
    if not is_fulfilled(work.config, work.facts):
        raise EnvironmentSetupError(
            f"{work.server} made an environment that is not the wished one: {_named(work)}",
            hint=f"remote-tool setup --force --server {work.server}",
            server=work.server,
        )


def _tell_what_ends_jobs(work: ServerWork) -> None:
    """Warn of a system that ends jobs when the connection closes: they would be lost, and nobody would know why."""
    if work.facts.ends_sessions:
        user = work.facts.username
        work.report(
            Notice(
                work.server,
                f"its systemd ends all processes of {user} at logout, jobs too (KillUserProcesses=yes); "
                f"its administrator can add KillExcludeUsers={user} to /etc/systemd/logind.conf",
            )
        )


async def _send_project(work: ServerWork, project: ProjectSnapshot, exchange: Exchange | None) -> None:
    """Send what changed."""
    if work.follows and work.facts.sync_state.startswith(COMPLETE):
        work.unchanged("rsync", f"nothing to send{_whose(work)}")
        return
    began = time.monotonic()

    async def send(relay: Relay | None = None) -> PushResult:
        return await send_project(work.host, work.config, project, SyncOptions(), work.report, relay)

    result = await (send() if exchange is None else exchange.send(work.server, send))
    work.warnings += result.warnings
    outcome = Outcome.DONE if result.changed else Outcome.UNCHANGED
    work.results.append(StepResult("rsync", outcome, describe(result, SyncOptions()), time.monotonic() - began))


async def _install_packages(work: ServerWork, options: PrepareOptions) -> None:
    """Install the packages, unless these are there already, or are those of a container."""
    if work.config.environment.kind is EnvironmentKind.INSIDE:
        work.unchanged("packages", "those inside")
        return
    file = find_package_file(work.config.local.root, work.config.environment.kind)
    activation = work.facts.activation
    assert activation is not None, "the environment is there by now"
    if file is None:
        work.unchanged("packages", "no requirements.txt, Pipfile, pyproject.toml or environment.yml")
        return
    if file.ignored:
        work.report(Notice(work.server, f"packages come from {file.name}; not looked at: {', '.join(file.ignored)}"))
    if (work.follows or not options.force) and work.facts.packages == fingerprint(file, activation):
        work.unchanged("packages", f"{file.name}{_whose(work)}")
        return
    await work.run(plan_packages(work.config, work.facts, activation, file), detail=file.name)


async def _bring_supervisor(work: ServerWork) -> None:
    """Send the program that starts and watches jobs, unless this version of it is there."""
    if work.facts.has_supervisor:
        work.unchanged("supervisor", source_archive()[0])
        return

    async def bring() -> tuple[Outcome, str]:
        await install_supervisor(work.host, work.config)
        return Outcome.DONE, source_archive()[0]

    await work.do("supervisor", bring)


async def _bring_image(work: ServerWork) -> None:
    """Pull the image of a server whose jobs get containers, so that no start has to wait for it."""
    container = work.config.servers[work.server].container
    if container is None:
        return
    image = container[-1]
    answer = await work.host.run(check_script(image), timeout=FACTS_TIMEOUT, label="is the image there", check=False)
    if answer.stdout.strip().endswith(PRESENT):
        work.unchanged("image", image)
        return
    await work.run(plan_pull(image), detail=image)


def _whose(work: ServerWork) -> str:
    return f", in one folder with {work.follows}" if work.follows else ""


def _useless_here(work: ServerWork) -> EnvironmentSetupError:
    """Say that an environment is not for this server; making it anew would break it on the other one."""
    if work.facts.environment_python:
        return EnvironmentSetupError(
            f"{work.server} has its folder in common with {work.follows}, and wants another environment there",
            hint="give both the same environment: in configs.yaml",
            server=work.server,
        )
    return EnvironmentSetupError(
        f"{work.server} has its folder in common with {work.follows}, and the environment that is there for both "
        f"does not start on {work.server}",
        hint="environment: uv brings its own Python; else both need the same one, and processors of one kind",
        server=work.server,
    )


def _named(work: ServerWork) -> str:
    activation = work.facts.activation
    if activation is not None and activation.kind == EnvironmentKind.INSIDE:
        return f"the one inside; Python {activation.version} of the server runs the supervisor"
    return f"Python {activation.version} ({activation.kind})" if activation else "none"
