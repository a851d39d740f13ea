"""Which planner makes which kind of environment, and what is checked for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.config.model import EnvironmentKind
from remote_tool.environments.conda import plan_conda
from remote_tool.environments.existing import plan_existing
from remote_tool.environments.inside import plan_inside
from remote_tool.environments.system_packages import install_command
from remote_tool.environments.uv import plan_uv
from remote_tool.environments.venv import plan_venv
from remote_tool.environments.version import is_too_old
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.plan import EnvironmentPlan

_BAD_FOLDERS = {
    "link": ("is a link, where a folder of ours must be", "on {server}: rm ~/{path}"),
    "file": ("is a file, where a folder must be", "move it away, or change name: in configs.yaml"),
    "owner": ("belongs to another user", "change name: in configs.yaml"),
}


def plan_environment(config: Config, facts: ServerFacts, *, force: bool = False) -> EnvironmentPlan:
    """Plan the configured environment, whatever is there.

    Raises:
        EnvironmentSetupError: This server cannot have it; the text says what it lacks.
    """
    kind = config.environment.kind
    if kind is EnvironmentKind.EXISTING:
        return plan_existing(config, facts)
    if kind is EnvironmentKind.INSIDE:
        return plan_inside(config, facts)
    if is_too_old(config.python_version):
        raise EnvironmentSetupError(f"Python {config.python_version} is too old; 3.8 is the oldest that works")
    if kind is EnvironmentKind.VENV:
        return plan_venv(config, facts, force=force)
    if kind is EnvironmentKind.UV:
        return plan_uv(config, facts, force=force)
    return plan_conda(config, facts, force=force)


def require_own_folders(facts: ServerFacts) -> None:
    """Refuse folders that somebody else could change under our hands.

    Raises:
        EnvironmentSetupError: The project's folder or ours is a trap.
    """
    for bad in facts.bad_folders:
        reason, _, path = bad.partition(":")
        what, hint = _BAD_FOLDERS[reason]
        raise EnvironmentSetupError(
            f"~/{path} on {facts.server} {what}",
            hint=hint.format(server=facts.server, path=path),
            server=facts.server,
        )


def require_rsync(facts: ServerFacts) -> None:
    """Refuse a server without rsync before long work begins.

    Raises:
        EnvironmentSetupError: It has none; the hint is what to type.
    """
    if not facts.rsync:
        raise EnvironmentSetupError(
            f"{facts.server} has no rsync", hint=install_command(facts, "rsync"), server=facts.server
        )
