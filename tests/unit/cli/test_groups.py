"""Groups of options, which several commands take."""

from __future__ import annotations

import pytest

from remote_tool.cli.groups import Shown, Targets
from remote_tool.cli.program import load_command
from remote_tool.errors import UsageError

STARTS = (
    *("job-run", "helper-torch-launch", "helper-launch", "helper-mpi-launch", "helper-ray-launch"),
    "helper-fan-out",
)


def test_every_command_that_starts_jobs_has_the_same_options() -> None:
    shared = {
        "--server",
        "--hosts",
        "--hostfile",
        "--env",
        "--devices",
        "--tag",
        "--artifact",
        "--workdir",
        "--no-sync",
    }
    for name in STARTS:
        assert shared <= {word for each in load_command(name).params for word in each.opts}, name


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="--server and --hosts cannot be combined"):
        Targets(server=["a"], hosts="b")
    with pytest.raises(UsageError, match="--json and --follow both write to stdout"):
        Shown(follow=True, json=True)
