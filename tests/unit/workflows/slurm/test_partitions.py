"""Partitions of a Slurm cluster: what sinfo says, and what of slurm: they do not allow."""

from __future__ import annotations

import pytest

from remote_tool.config.slurm import Slurm
from remote_tool.environments.checks.checks import Status
from remote_tool.workflows.slurm.partitions import (
    count_gpus,
    judge_clock,
    judge_slurm,
    parse_partitions,
    seconds_of,
)

SINFO = """\
gpu       |up   |1-00:00:00|n1 |idle       |gpu:a100:4(S:0-1)|gpu:a100:0(IDX:N/A)
gpu       |up   |1-00:00:00|n2 |mixed      |gpu:a100:4(S:0-1)|gpu:a100:3(IDX:0-2)
gpu       |up   |1-00:00:00|n3 |drained*   |gpu:a100:4       |gpu:a100:0
cpu       |down |infinite  |n1 |idle       |(null)           |(null)
sinfo: a line of another form
"""


def test_partitions_have_their_gpus_nodes_and_limits() -> None:
    gpu, cpu = parse_partitions(SINFO)
    expected = "partition gpu: 5 of 8 GPUs free, 1 of 2 nodes idle (1 more not available), up to 1-00:00:00"
    assert gpu.describe() == expected
    assert cpu.describe() == "partition cpu: 1 of 1 node idle, not up"


@pytest.mark.parametrize(
    ("text", "count"), [("gpu:4", 4), ("gpu:a100:2(S:0),nvme:1", 2), ("(null)", 0), ("gpu:a:1,gpu:b:2", 3), ("gpu", 0)]
)
def test_gpus_are_counted_with_and_without_types(text: str, count: int) -> None:
    assert count_gpus(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("8:00:00", 28800),
        ("2-12", 216000),
        ("2-12:30:00", 217800),
        ("infinite", None),
        ("", None),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("options", "nodes", "status", "words"),
    [
        ({"partition": "gpu", "time": "8:00:00"}, 1, Status.OK, "partition gpu"),
        ({"partition": "gpu", "time": "2-00:00:00"}, 1, Status.FAIL, "time is 2-00:00:00"),
        ({"partition": "gpu"}, 3, Status.WARN, "1 of 2 nodes idle"),
        ({"partition": "nowhere"}, 1, Status.FAIL, "no partition nowhere"),
        ({"partition": "cpu", "gres": "gpu:1"}, 1, Status.FAIL, "no GPUs"),
        ({"partition": "cpu"}, 1, Status.WARN, "not up"),
    ],
)
def test_what_is_configured_is_compared_with_the_partition(
    options: dict[str, str], nodes: int, status: Status, words: str
) -> None:
    (check,) = judge_slurm(Slurm(options, nodes), parse_partitions(SINFO))
    assert check.status is status
    assert words in check.value
    assert bool(check.hint) == (status is not Status.OK)


@pytest.mark.parametrize(
    ("times", "status", "words"),
    [
        ("1000 1000 1001", Status.OK, "agrees"),
        # The controller took its time to answer.
        ("1000 1018 1020", Status.OK, "agrees"),
        ("1000 1003 1000", Status.OK, "agrees"),
        ("1000 1031 1000", Status.WARN, "30 s ahead of"),
        ("1000 969 1000", Status.WARN, "30 s behind"),
    ],
)
def test_the_clock_of_the_controller_is_compared_with_that_of_the_login_node(
    times: str, status: Status, words: str
) -> None:
    check = judge_clock(times)
    assert check.status is status
    assert words in check.value


@pytest.mark.parametrize("times", ["", "1000  1000", "1000 N/A 1000", "gpu |up |infinite |n1 |idle |(null) |(null)"])
def test_a_clock_that_slurm_does_not_tell_is_unknown(times: str) -> None:
    assert judge_clock(times).status is Status.UNKNOWN
