"""The launchers by name."""

from __future__ import annotations

from typing import NamedTuple


class LauncherEntry(NamedTuple):
    """A launcher's module and an example.

    Attributes:
        module: A module of this package with a ``LAUNCHER``.
        example: A command for hints.
        needs_command: Whether a launch needs a command of the user.
    """

    module: str
    example: str
    needs_command: bool = True


LAUNCHERS = {
    "torchrun": LauncherEntry("torch", "helper-torch-launch --cmd train.py"),
    "shell": LauncherEntry("shell", "helper-launch --cmd ./run_train.sh"),
    "mpi": LauncherEntry("mpi", "helper-mpi-launch --cmd solve.py"),
    "ray": LauncherEntry("ray", "helper-ray-launch --cmd tune.py", needs_command=False),
}
