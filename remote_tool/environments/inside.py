"""Where jobs begin behind a launch command or in a container: Python and packages are those inside.

The server itself needs any Python that starts, for the supervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script
from remote_tool.environments.plan import EnvironmentPlan
from remote_tool.environments.step import Step
from remote_tool.environments.system_packages import install_command
from remote_tool.environments.version import is_too_old
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts

CAPTURE_TIMEOUT = 120.0


def plan_inside(config: Config, facts: ServerFacts) -> EnvironmentPlan:
    """Record a Python of the server, newest first, and install nothing.

    Raises:
        EnvironmentSetupError: It has none that the supervisor runs on.
    """
    python = next((python for python in facts.pythons if not is_too_old(python.version)), None)
    if python is None:
        raise EnvironmentSetupError(
            f"{facts.server} itself has no Python 3.8 or newer, which the supervisor of jobs needs",
            hint=f"{install_command(facts, 'python')}; or set servers.{facts.server}.environment to uv or miniconda",
            server=facts.server,
        )
    prefix = python.path.rpartition("/bin/")[0] or "/usr"
    record = capture_script(config, prefix, python=python.path)
    return EnvironmentPlan((Step("environment", "Recording the environment", record, CAPTURE_TIMEOUT),))
