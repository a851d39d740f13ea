"""``environment: uv``: created with uv, which downloads a Python if the server lacks the requested version."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remote_tool.environments.kinds.creation import creation_script
from remote_tool.environments.plan import EnvironmentPlan
from remote_tool.environments.step import Step
from remote_tool.environments.system_packages import install_command
from remote_tool.errors import EnvironmentSetupError
from remote_tool.paths import shell_path

if TYPE_CHECKING:
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.plan import EnvironmentRequest

INSTALL_TIMEOUT = 600.0
CREATE_TIMEOUT = 1800.0


def plan(request: EnvironmentRequest) -> EnvironmentPlan:
    """Plan the environment, and an installation of uv without root if the server has none.

    Raises:
        EnvironmentSetupError: The server has no uv, and no Python to install it with.
    """
    config, facts = request.config, request.facts
    tools = shell_path(f"{config.remote.scripts}/tools")
    uv = shlex.quote(facts.uv) if facts.uv else f"{tools}/bin/uv"
    create = f'{uv} venv -q --python {shlex.quote(config.python_version)} "$prefix" || exit'
    steps = [
        Step(
            "environment",
            "Creating the environment with uv",
            creation_script(config, create, force=request.force),
            CREATE_TIMEOUT,
        )
    ]
    if not facts.uv:
        steps.insert(0, _install(facts, tools))
    return EnvironmentPlan(tuple(steps))


def _install(facts: ServerFacts, tools: str) -> Step:
    if not facts.pythons:
        raise EnvironmentSetupError(
            f"{facts.server} has no uv, and no Python to install it with",
            hint=f"{install_command(facts, 'python')}; or set environment to miniconda",
            server=facts.server,
        )
    python = next((python for python in facts.pythons if python.makes_environments), facts.pythons[0])
    path = shlex.quote(python.path)
    # For a Python of the distribution, pip allows --target; its venv module may be missing.
    install = (
        f"{path} -m venv {tools} && {tools}/bin/python -m pip install -q --no-input uv || exit"
        if python.makes_environments
        else f"{path} -m pip install -q --no-input --target {tools} uv || exit"
    )
    return Step("uv", "Installing uv", f"rm -rf {tools}\n{install}\n{tools}/bin/uv --version", INSTALL_TIMEOUT)
