"""The options of commands that start jobs: one declaration for the command line, requests and type checkers."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from remote_tool import FanOutRequest, LaunchRequest, StartRequest, SweepRequest
from remote_tool.errors import UsageError
from remote_tool.launchers import options
from remote_tool.protocol.job_fields import REQUEST_FIELDS

GROUPS = (
    options.JobOptions,
    options.QueueOptions,
    options.EndOptions,
    options.ProgramOptions,
    options.RunOptions,
    options.LaunchOptions,
)


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_has_a_flag_of_its_name_and_a_help_text(group: type) -> None:
    for name, hint in get_type_hints(group, include_extras=True).items():
        option = get_args(hint)[1]
        assert option.flag.split("/")[0] == f"--{name.replace('_', '-')}"
        assert option.help.endswith(".")


@pytest.mark.parametrize(
    ("keywords", "request_kind"), [(options.StartKeywords, StartRequest), (options.LaunchKeywords, LaunchRequest)]
)
def test_keywords_are_fields_of_the_request_and_no_option_of_every_job_is_missing(
    keywords: type, request_kind: type[StartRequest | LaunchRequest]
) -> None:
    names = set(keywords.__annotations__)
    assert names <= {each.name for each in fields(request_kind)}
    assert {each.name for each in fields(options.JobOptions)} <= names


@pytest.mark.parametrize("kind", [StartRequest, LaunchRequest, FanOutRequest, SweepRequest])
def test_every_request_has_the_options_of_every_job(
    kind: type[StartRequest | LaunchRequest | FanOutRequest | SweepRequest],
) -> None:
    assert {each.name for each in fields(options.JobOptions)} < {each.name for each in fields(kind)}


def test_the_option_that_a_setting_is_made_from_exists() -> None:
    known = {each.name for each in fields(StartRequest)}
    assert {each.option for each in REQUEST_FIELDS if each.option} <= known


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpus": -1}, "--gpus must be a whole number from 0 to"),
        ({"gpus": 1, "priority": 101}, "--priority must be a whole number from 0 to 100, found 101"),
        ({"nice": True}, "--nice must be a whole number from 0 to 19, found True"),
        ({"max_duration": "soon"}, "--max-duration must be a duration"),
        ({"retries": -1}, "--retries must be a whole number from 0 to"),
    ],
)
def test_an_invalid_option_is_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StartRequest("true", **wrong)  # type: ignore[arg-type]
