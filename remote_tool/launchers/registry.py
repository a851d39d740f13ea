"""The launchers by name."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A launcher's module and an example.

    Attributes:
        module: A module of this package with a ``LAUNCHER``.
        example: A command for hints.
    """

    module: str
    example: str


LAUNCHERS = {
    "torchrun": Entry("torch", "helper-torch-launch --cmd train.py"),
    "shell": Entry("shell", "helper-launch --cmd ./run_train.sh"),
    "mpi": Entry("mpi", "helper-mpi-launch --cmd solve.py"),
}
