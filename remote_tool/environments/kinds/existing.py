"""``environment: {existing: PREFIX}``: an environment of the user, recorded but never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script
from remote_tool.environments.facts import is_too_old, version_matches
from remote_tool.environments.plan import EnvironmentPlan
from remote_tool.environments.step import Step
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from remote_tool.environments.plan import EnvironmentRequest

CAPTURE_TIMEOUT = 120.0


def plan(request: EnvironmentRequest) -> EnvironmentPlan:
    """Plan to record an environment that the user has created.

    Raises:
        EnvironmentSetupError: It does not exist, does not start, or has another version.
    """
    config, facts = request.config, request.facts
    prefix = config.environment.prefix or ""
    python = facts.existing
    if python is None:
        raise EnvironmentSetupError(
            f"{prefix}/bin/python on {facts.server} does not exist, or does not start",
            hint="correct environment.existing in configs.yaml, or create the environment on the server",
            server=facts.server,
        )
    if config.python is not None and not version_matches(python.version, config.python):
        raise EnvironmentSetupError(
            f"{prefix} on {facts.server} has Python {python.version}, but configs.yaml asks for {config.python}",
            hint="change python: in configs.yaml, or leave it out",
            server=facts.server,
        )
    if is_too_old(python.version):
        raise EnvironmentSetupError(
            f"{prefix} on {facts.server} has Python {python.version}; Python 3.8 or newer is required",
            server=facts.server,
        )
    record = capture_script(config, prefix)
    return EnvironmentPlan((Step("environment", "Recording the environment", record, CAPTURE_TIMEOUT),))
