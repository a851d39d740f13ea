"""``environment: venv``: created with a Python of the server."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remote_tool.environments.kinds.creation import creation_script
from remote_tool.environments.plan import EnvironmentPlan
from remote_tool.environments.step import Step
from remote_tool.environments.system_packages import install_command
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import Interpreter, ServerFacts
    from remote_tool.environments.plan import EnvironmentRequest

CREATE_TIMEOUT = 600.0


def plan(request: EnvironmentRequest) -> EnvironmentPlan:
    """Plan a venv with the requested version; if that Python lacks the venv module, uv creates it.

    Raises:
        EnvironmentSetupError: The server has no such Python, or it cannot create environments.
    """
    config, facts = request.config, request.facts
    candidates = [python for python in facts.pythons if python.is_version(config.python_version)]
    if not candidates:
        raise _no_python(config, facts)
    python = next((python for python in candidates if python.makes_environments), candidates[0])
    create = f'{shlex.quote(python.path)} -m venv "$prefix" || exit'
    if not python.makes_environments:
        if not facts.uv:
            raise _no_venv(python, facts)
        create = f'{shlex.quote(facts.uv)} venv -q --python {shlex.quote(python.path)} "$prefix" || exit'
    step = Step(
        "environment", "Creating the environment", creation_script(config, create, force=request.force), CREATE_TIMEOUT
    )
    return EnvironmentPlan((step,))


def _no_python(config: Config, facts: ServerFacts) -> EnvironmentSetupError:
    install = install_command(facts, "python", version=config.python_version)
    versions = ", ".join(python.version for python in facts.pythons) or "none"
    return EnvironmentSetupError(
        f"{facts.server} has no Python {config.python_version} for a venv; it has: {versions}",
        hint=f"{install}; or set environment to uv or miniconda",
        server=facts.server,
    )


def _no_venv(python: Interpreter, facts: ServerFacts) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"{python.path} on {facts.server} cannot create a venv: its venv or ensurepip module is not installed",
        hint=f"{install_command(facts, 'venv', version=python.version)}; or set environment to uv or miniconda",
        server=facts.server,
    )
