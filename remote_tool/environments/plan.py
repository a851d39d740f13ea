"""What has to be done for an environment, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_tool.environments.installers import ChosenInstaller
    from remote_tool.environments.step import Step


@dataclass(frozen=True)
class EnvironmentPlan:
    """The steps that make an environment, in their order; the last one records it.

    Attributes:
        steps: What runs on the server.
        installer: What must be on the server before the steps.
    """

    steps: tuple[Step, ...]
    installer: ChosenInstaller | None = None
