"""Groups of options: declared once, taken by several commands, given to each as one object."""

from __future__ import annotations

import pytest

from remote_tool import LaunchRequest, StartRequest
from remote_tool.cli.commands.helpers import launch
from remote_tool.cli.groups import JobOptions, LaunchOptions, Shown, Targets, flatten
from remote_tool.cli.program import load_command
from remote_tool.errors import UsageError

STARTS = ("job-run", "helper-torch-launch", "helper-launch", "helper-mpi-launch", "helper-fan-out")


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


def test_a_flat_command_gets_its_groups() -> None:
    seen: list[Targets] = []

    def command(*, targets: Targets) -> None:
        seen.append(targets)

    flatten(command)(server=["a"], hosts=None, hostfile=None, private_key=None)
    assert [vars(each) for each in seen] == [vars(Targets(server=["a"]))]
    assert seen[0].servers == ("a",)


def test_a_group_makes_the_request_that_the_python_api_takes() -> None:
    options = JobOptions(server=["a"], env=["A=1"], devices="0,3", tag=["t"], no_sync=True, from_job="7")
    expected = StartRequest("true", ("a",), env={"A": "1"}, tags=("t",), sync=False, devices=("0", "3"), from_job="7")
    assert options.request(StartRequest, command="true") == expected
    launched = LaunchOptions(lost_after=9.0).request(LaunchRequest, command="x", nproc_per_node=2)
    assert launched == LaunchRequest("x", processes=2, lost_after=9.0)
    assert launch.read_processes("gpu") == "gpu"


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="--server and --hosts cannot be combined"):
        Targets(server=["a"], hosts="b")
    with pytest.raises(UsageError, match="--json and --follow both write to stdout"):
        Shown(follow=True, json=True)
