"""Plan the configured environment of a server, and check its requirements."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from remote_tool.environments.activation import requested_spec
from remote_tool.environments.facts import is_too_old, version_matches
from remote_tool.environments.plan import EnvironmentRequest
from remote_tool.environments.system_packages import install_command
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.plan import EnvironmentPlan

_BAD_FOLDERS = {
    "link": ("is a symbolic link, but must be a folder", "on {server}: rm ~/{path}"),
    "file": ("is a file, but must be a folder", "move it away, or change name: in configs.yaml"),
    "owner": ("belongs to another user", "change name: in configs.yaml"),
}


class _Kind(Protocol):
    """A module of ``kinds/``."""

    def plan(self, request: EnvironmentRequest) -> EnvironmentPlan: ...


def plan_environment(config: Config, facts: ServerFacts, *, force: bool = False) -> EnvironmentPlan:
    """Plan the configured environment, even if it exists already.

    Raises:
        EnvironmentSetupError: This server does not support it; the message says what is missing.
    """
    if config.python is not None and is_too_old(config.python):
        raise EnvironmentSetupError(f"Python {config.python} is too old; Python 3.8 or newer is required")
    kind = cast("_Kind", import_module(f"remote_tool.environments.kinds.{config.environment.kind.module}"))
    return kind.plan(EnvironmentRequest(config, facts, force=force))


def is_fulfilled(config: Config, facts: ServerFacts) -> bool:
    """Return whether the server has a finished, working environment that matches the configuration.

    Without ``python:``, any version matches: otherwise two users with different default versions would rebuild each
    other's environment.
    """
    activation = facts.activation
    if activation is None or facts.environment_python != activation.version:
        return False
    requested = requested_spec(config)
    is_same_kind = (activation.kind, list(activation.channels), activation.requested_prefix) == (
        config.environment.kind.value,
        requested["channels"],
        requested["prefix"],
    )
    return is_same_kind and (config.python is None or version_matches(activation.version, config.python))


def require_own_folders(facts: ServerFacts) -> None:
    """Refuse folders that another user could change.

    Raises:
        EnvironmentSetupError: The project folder or one of ours is not a plain folder of this user.
    """
    for folder in facts.bad_folders:
        reason, _, path = folder.partition(":")
        problem, hint = _BAD_FOLDERS[reason]
        raise EnvironmentSetupError(
            f"~/{path} on {facts.server} {problem}",
            hint=hint.format(server=facts.server, path=path),
            server=facts.server,
        )


def require_rsync(facts: ServerFacts) -> None:
    """Refuse a server without rsync.

    Raises:
        EnvironmentSetupError: rsync is missing; the hint is the command that installs it.
    """
    if not facts.rsync:
        raise EnvironmentSetupError(
            f"rsync is not installed on {facts.server}", hint=install_command(facts, "rsync"), server=facts.server
        )
