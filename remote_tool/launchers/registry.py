"""The launchers, by the name that a request gives."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a launcher is, and how it is used.

    Attributes:
        module: A module of this package; its ``LAUNCHER`` is the launcher.
        example: A command to type, for hints.
    """

    module: str
    example: str


LAUNCHERS = {
    "torchrun": Entry("torch", "helper-torch-launch --cmd train.py"),
    "shell": Entry("shell", "helper-launch --cmd ./run_train.sh"),
    "mpi": Entry("mpi", "helper-mpi-launch --cmd solve.py"),
}
