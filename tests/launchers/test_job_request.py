"""The options that every command that starts jobs has."""

from __future__ import annotations

from dataclasses import fields
from inspect import Parameter, signature

import pytest

from remote_tool import FanOutRequest, LaunchRequest, StartRequest
from remote_tool.launchers.job_request import JobRequest

POSITIONS = {
    StartRequest: "command servers environment tags sync artifacts devices",
    LaunchRequest: "command servers processes environment tags master_port use_env max_restarts sync artifacts devices",
    FanOutRequest: "command servers total items per_server environment tags retries sync artifacts gather devices",
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_arguments_without_names_keep_their_order(kind: type[JobRequest]) -> None:
    parameters = signature(kind).parameters.values()
    assert [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD] == POSITIONS[kind].split()


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_request_has_every_option_of_a_job(kind: type[JobRequest]) -> None:
    assert {each.name for each in fields(JobRequest)} < {each.name for each in fields(kind)}
    made = kind("true", ("a",), env={"A": "1"}, environment={"A": "0", "B": "0"}, nice=3, workdir="src", overwrite=True)
    assert made.environment == {"A": "1", "B": "0"}
    assert "environment" not in repr(made)
    assert (made.nice, made.workdir, made.overwrite) == (3, "src", True)
