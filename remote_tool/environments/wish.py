"""What is wished, and whether a server has it already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.config.model import EnvironmentKind
from remote_tool.environments.version import version_matches

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts


def wish_of(config: Config) -> dict[str, object]:
    """Return what the record of a finished environment keeps of the wish, as JSON has it."""
    environment = config.environment
    is_existing = environment.kind is EnvironmentKind.EXISTING
    return {
        "channels": list(environment.channels) if environment.kind.is_conda else [],
        "prefix": (environment.prefix or "") if is_existing else "",
    }


def is_fulfilled(config: Config, facts: ServerFacts) -> bool:
    """Tell whether the server has a finished environment that is the wished one, and it starts.

    Without ``python:`` any version will do that an environment of the same kind has: else two people with different
    versions of their own would undo each other's work.
    """
    activation = facts.activation
    if activation is None or facts.environment_python != activation.version:
        return False
    wish = wish_of(config)
    same = (activation.kind, list(activation.channels), activation.wished_prefix) == (
        config.environment.kind.value,
        wish["channels"],
        wish["prefix"],
    )
    return same and (config.python is None or version_matches(activation.version, config.python))
