"""``environment: {existing: PREFIX}``: looked at, recorded, and never removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script
from remote_tool.environments.plan import EnvironmentPlan
from remote_tool.environments.step import Step
from remote_tool.environments.version import is_too_old, version_matches
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts

CAPTURE_TIMEOUT = 120.0


def plan_existing(config: Config, facts: ServerFacts) -> EnvironmentPlan:
    """Check an environment that the user has made.

    Raises:
        EnvironmentSetupError: It is not there, does not start, or is of another version.
    """
    prefix = config.environment.prefix or ""
    python = facts.existing
    if python is None:
        raise EnvironmentSetupError(
            f"{facts.server} has no Python that starts at {prefix}/bin/python",
            hint="correct environment.existing in configs.yaml, or make the environment there",
            server=facts.server,
        )
    if config.python is not None and not version_matches(python.version, config.python):
        raise EnvironmentSetupError(
            f"{prefix} on {facts.server} has Python {python.version}, and configs.yaml wants {config.python}",
            hint="change python: in configs.yaml, or leave it out",
            server=facts.server,
        )
    if is_too_old(python.version):
        raise EnvironmentSetupError(
            f"{prefix} on {facts.server} has Python {python.version}; 3.8 is the oldest that works",
            server=facts.server,
        )
    record = capture_script(config, prefix)
    return EnvironmentPlan((Step("environment", "Recording the environment", record, CAPTURE_TIMEOUT),))
