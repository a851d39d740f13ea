"""The steps that prepare one server: environment, project, packages, agent and image.

``prepare.py`` runs them on all servers, and decides which server of a shared folder is the first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from remote_tool.config.environment import EnvironmentKind
from remote_tool.environments.choice import is_fulfilled, plan_environment
from remote_tool.environments.facts import facts_script, parse_facts
from remote_tool.environments.image import PRESENT, check_script, plan_pull
from remote_tool.environments.package_files import find_packages
from remote_tool.environments.packages import fingerprint, plan_packages
from remote_tool.environments.scm_version import version_variables
from remote_tool.errors import EnvironmentSetupError
from remote_tool.workflows.agent_client import install_supervisor
from remote_tool.workflows.agent_program import source_archive
from remote_tool.workflows.events import Notice, Outcome
from remote_tool.workflows.prepare.steps import ServerWork, StepResult
from remote_tool.workflows.sync.sync import describe
from remote_tool.workflows.sync.sync import send_project as sync_project

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.package_files import Packages
    from remote_tool.transport.host import Host
    from remote_tool.transport.sync.push import PushResult
    from remote_tool.transport.sync.relayed import Relay
    from remote_tool.workflows.sync.options import SyncOptions
    from remote_tool.workflows.sync.project import ProjectSnapshot
    from remote_tool.workflows.sync.relay import Exchange

FACTS_TIMEOUT = 60.0
COMPLETE = "complete "
NO_PACKAGES = "no requirements.txt, Pipfile, pyproject.toml or environment.yml"


async def ask_facts(host: Host, config: Config, *, probe: bool = False, compare: bool = False) -> ServerFacts:
    """Query a server's state in one round trip.

    Raises:
        EnvironmentSetupError: The answer cannot be read.
    """
    script = facts_script(config, source_archive()[0], probe=probe, compare=compare)
    answer = await host.run(script, timeout=FACTS_TIMEOUT, label="the server's facts")
    return parse_facts(host.name, answer.stdout)


async def set_up(work: ServerWork, *, force: bool) -> None:
    """Create the configured environment, unless it exists."""
    _warn_of_session_end(work)
    if (work.follows or not force) and is_fulfilled(work.config, work.facts):
        work.unchanged("environment", f"{_describe_environment(work)}{_shared_with(work)}")
        return
    if work.follows:
        raise _unusable_here(work)
    if not work.facts.probed:
        work.facts = await ask_facts(work.host, work.config, probe=True)
    plan = plan_environment(work.config, work.facts, force=force)
    if plan.installer is not None:
        from remote_tool.workflows.prepare.installer import bring_installer  # noqa: PLC0415 - loads an HTTP client

        await bring_installer(work, plan.installer)

    async def query_again() -> str:
        work.facts = await ask_facts(work.host, work.config)
        return _describe_environment(work)

    *before, last = plan.steps
    for step in before:
        await work.run(step)
    await work.run(last, describe=query_again)
    if not is_fulfilled(work.config, work.facts):
        raise EnvironmentSetupError(
            f"{work.server} has an environment that is not the configured one: {_describe_environment(work)}",
            hint=f"remote-tool setup --force --server {work.server}",
            server=work.server,
        )


def _warn_of_session_end(work: ServerWork) -> None:
    """Warn about a server whose systemd ends jobs with the connection: they would be lost without an explanation."""
    if work.facts.ends_sessions:
        user = work.facts.username
        work.report(
            Notice(
                work.server,
                f"its systemd kills all processes of {user} at logout, including jobs (KillUserProcesses=yes); "
                f"its administrator can add KillExcludeUsers={user} to /etc/systemd/logind.conf",
            )
        )


async def send_project(
    work: ServerWork, project: ProjectSnapshot, options: SyncOptions, exchange: Exchange | None
) -> None:
    """Send changed files of the project."""
    if work.follows and work.facts.sync_state.startswith(COMPLETE):
        work.unchanged("rsync", f"nothing to send{_shared_with(work)}")
        return
    began = time.monotonic()

    async def send(relay: Relay | None = None) -> PushResult:
        return await sync_project(work.host, work.config, project, options, work.report, relay)

    result = await (send() if exchange is None else exchange.send(work.server, send))
    work.warnings += result.warnings
    outcome = Outcome.DONE if result.changed else Outcome.UNCHANGED
    work.results.append(StepResult("rsync", outcome, describe(result, options), time.monotonic() - began))


async def install_packages(work: ServerWork, *, force: bool) -> None:
    """Install the packages, unless they are up to date or part of a container."""
    if work.config.environment.kind is EnvironmentKind.INSIDE:
        work.unchanged("packages", "those inside")
        return
    root = work.config.local.root
    packages = find_packages(root, work.config.environment.kind, work.config.packages)
    activation = work.facts.activation
    assert activation is not None, "set_up has made sure of it"
    if not packages.sources:
        _report_nothing_installed(work, packages)
        return
    if packages.ignored:
        work.report_once(f"packages come from {packages.name}; ignored: {', '.join(packages.ignored)}")
    if (work.follows or not force) and work.facts.packages == fingerprint(packages, activation):
        work.unchanged("packages", f"{packages.name}{_shared_with(work)}")
        return
    variables = await version_variables(root, packages)
    step = plan_packages(work.config, work.facts, activation, packages, variables)
    await work.run(step, detail=packages.name)


def _report_nothing_installed(work: ServerWork, packages: Packages) -> None:
    """Report that no packages are installed, and the files that cannot be used."""
    for each in packages.unusable:
        work.report_once(f"{each.name}: not installed, {each.reason}")
    names = ", ".join(each.name for each in packages.unusable)
    work.unchanged("packages", f"none from {names}" if names else NO_PACKAGES)


async def bring_supervisor(work: ServerWork) -> None:
    """Send the agent, unless the server has this version."""
    if work.facts.has_supervisor:
        work.unchanged("supervisor", source_archive()[0], is_internal=True)
        return

    async def install() -> tuple[Outcome, str]:
        await install_supervisor(work.host, work.config)
        return Outcome.DONE, source_archive()[0]

    await work.do("supervisor", install, is_internal=True)


async def bring_image(work: ServerWork) -> None:
    """Pull the image if jobs run in a container, so that starts need not wait for it."""
    container = work.config.servers[work.server].container
    if container is None:
        return
    image = container[-1]
    answer = await work.host.run(check_script(image), timeout=FACTS_TIMEOUT, label="look for the image", check=False)
    if answer.stdout.strip().endswith(PRESENT):
        work.unchanged("image", image)
        return
    await work.run(plan_pull(image), detail=image)


def _shared_with(work: ServerWork) -> str:
    return f", shared with {work.follows}" if work.follows else ""


def _unusable_here(work: ServerWork) -> EnvironmentSetupError:
    """Return the error for an environment of another server: recreating it would break it there."""
    if work.facts.environment_python:
        return EnvironmentSetupError(
            f"{work.server} shares its folder with {work.follows} but needs another environment",
            hint="set the same environment: for both in configs.yaml",
            server=work.server,
        )
    return EnvironmentSetupError(
        f"{work.server} shares its folder with {work.follows}, and their environment does not start on {work.server}",
        hint="use environment: miniconda, which installs Python into that folder; otherwise both need the same Python"
        " and the same kind of processor",
        server=work.server,
    )


def _describe_environment(work: ServerWork) -> str:
    activation = work.facts.activation
    if activation is not None and activation.kind == EnvironmentKind.INSIDE:
        return f"inside the container; the supervisor uses the server's Python {activation.version}"
    return f"Python {activation.version} ({activation.kind})" if activation else "none"
