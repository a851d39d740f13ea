"""The request for an environment, and the plan that a kind makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.installers import ChosenInstaller
    from remote_tool.environments.step import Step


@dataclass(frozen=True)
class EnvironmentRequest:
    """A request for the environment of a server.

    Attributes:
        config: The server's configuration.
        facts: The server's facts.
        force: Recreate the environment even if it is up to date.
    """

    config: Config
    facts: ServerFacts
    force: bool = False


@dataclass(frozen=True)
class EnvironmentPlan:
    """The steps that create an environment, in order; the last one records it.

    Attributes:
        steps: The scripts that run on the server.
        installer: The file that must be on the server before them.
    """

    steps: tuple[Step, ...]
    installer: ChosenInstaller | None = None
