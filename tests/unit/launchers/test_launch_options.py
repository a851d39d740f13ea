"""What the record of a launch keeps of its request."""

from __future__ import annotations

import json

import pytest

from remote_tool.errors import JobError
from remote_tool.launchers.launch_options import format_options, read_options
from remote_tool.launchers.request import LaunchRequest


def test_the_options_of_a_launch_are_read_as_they_were_written() -> None:
    request = LaunchRequest(
        "train.py --naïve", nproc_per_node="gpu", max_restarts=3, master_port=29500, lost_after=7.5, tags=("a",)
    )
    options = read_options(format_options(request, ("a", "b"), {"b": 2, "a": None}))
    assert (options.nodes, options.listed, options.command) == (2, (None, 2), "train.py --naïve")
    assert LaunchRequest(**options.of_request, tags=("a",)) == request
    assert read_options(format_options(request, ("a",), {})).listed == ()


def test_no_variable_is_in_the_options() -> None:
    request = LaunchRequest("train.py", environment={"TOKEN": "secret"})
    assert "TOKEN" not in format_options(request, ("a",), {})
    assert "secret" not in format_options(request, ("a",), {})


def test_a_command_that_is_too_long_for_a_record_leaves_it_without_options() -> None:
    assert format_options(LaunchRequest("true " + "x" * 20_000, launcher="shell"), ("a",), {}) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("command", 1),
        ("processes", "many"),
        ("processes", True),
        ("max_restarts", None),
        ("master_port", "29500"),
        ("nodes", "2"),
        ("listed", ["2"]),
        ("listed", 2),
    ],
)
def test_options_of_a_wrong_type_are_refused(name: str, value: object) -> None:
    values = json.loads(format_options(LaunchRequest("train.py"), ("a",), {}))
    for text in (json.dumps({**values, name: value}), json.dumps({**values, name: value}, indent=1)[1:], "[]"):
        with pytest.raises(JobError, match="cannot be read"):
            read_options(text)
