"""The launchers by name."""

from __future__ import annotations

from typing import NamedTuple


class LauncherEntry(NamedTuple):
    """A launcher's module and an example.

    Attributes:
        module: A module of this package with a ``LAUNCHER``.
        example: A command for hints.
    """

    module: str
    example: str


LAUNCHERS = {
    "torchrun": LauncherEntry("torch", "helper-torch-launch --cmd train.py"),
    "shell": LauncherEntry("shell", "helper-launch --cmd ./run_train.sh"),
    "mpi": LauncherEntry("mpi", "helper-mpi-launch --cmd solve.py"),
}
