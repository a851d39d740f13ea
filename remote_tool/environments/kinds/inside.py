"""The environment of jobs behind a launch command or in a container, which use the Python and packages inside.

The server itself only needs a Python for the supervisors of the jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.environments.activation import capture_script
from remote_tool.environments.facts import is_too_old
from remote_tool.environments.plan import EnvironmentPlan
from remote_tool.environments.step import Step
from remote_tool.environments.system_packages import install_command
from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from remote_tool.environments.plan import EnvironmentRequest

CAPTURE_TIMEOUT = 120.0


def plan(request: EnvironmentRequest) -> EnvironmentPlan:
    """Plan to record the newest Python of the server; nothing is installed.

    Raises:
        EnvironmentSetupError: The server has no Python for a supervisor.
    """
    config, facts = request.config, request.facts
    python = next((python for python in facts.pythons if not is_too_old(python.version)), None)
    if python is None:
        raise EnvironmentSetupError(
            f"{facts.server} itself has no Python 3.8 or newer, which is required to supervise jobs",
            hint=f"{install_command(facts, 'python')}; or set servers.{facts.server}.environment to uv or miniconda",
            server=facts.server,
        )
    prefix = python.path.rpartition("/bin/")[0] or "/usr"
    record = capture_script(config, prefix, python=python.path)
    return EnvironmentPlan((Step("environment", "Recording the environment", record, CAPTURE_TIMEOUT),))
