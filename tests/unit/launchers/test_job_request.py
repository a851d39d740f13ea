"""The options that every command that starts jobs has."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING

import pytest

from remote_tool import FanOutRequest, JobSelection, LaunchRequest, StartRequest
from remote_tool.errors import UsageError
from remote_tool.launchers.job_request import JobRequest
from remote_tool.workflows.jobs.run import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize("kind", [*POSITIONS, RunRequest])
@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"command": ["python", "train.py"]}, "command must be text, found a list"),
        ({"env": {"SEED": 1}}, r"env\['SEED'\] must be text, found a int"),
        ({"env": "SEED=1"}, "env must be a mapping"),
    ],
)
def test_a_value_that_is_not_text_is_refused(kind: type[JobRequest], wishes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind(**{"command": "true", **wishes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*(partial(kind, "true") for kind in POSITIONS), JobSelection])
def test_one_text_is_not_a_list_of_servers(kind: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match=r"servers must be a list of names, such as \['gpu1'\], found 'gpu2'"):
        kind(servers="gpu2")
