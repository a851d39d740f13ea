"""The variables of NCCL's flight recorder, as a shell sets them."""

from __future__ import annotations

import os
import subprocess

import pytest

from remote_tool.launchers.request import LaunchRequest
from tests.unit.launchers.test_torch import node, plan

OLD = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/p q/project/.jobs/job-a-0/nccl-rank-",
}
NEW = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": OLD["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]}
DUMPS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


@pytest.mark.row(225)
@pytest.mark.parametrize(
    ("torch", "of_user", "expected"),
    [
        ("2.13.0+cpu", {}, {**NEW, **DUMPS}),
        ("2.8.1", {}, {**OLD, **DUMPS}),
        ("unknown", {}, {**OLD, **DUMPS}),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "0"}, {**NEW, **DUMPS, "TORCH_FR_BUFFER_SIZE": "0"}),
        (
            "2.13.0",
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"},
            {**NEW, **DUMPS, "TORCH_NCCL_TRACE_BUFFER_SIZE": "7", "TORCH_FR_BUFFER_SIZE": "7"},
        ),
        (
            "2.8.1",
            {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine"},
            {**OLD, **DUMPS, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine"},
        ),
        ("2.13.0", {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, {**NEW, "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}),
    ],
)
def test_the_flight_recorder_is_on_where_the_user_has_not_set_it(
    torch: str, of_user: dict[str, str], expected: dict[str, str]
) -> None:
    lines = plan(LaunchRequest("train.py"), node("a", torch=torch)).nodes[0].defaults
    environment = {"PATH": os.environ["PATH"], "REMOTE_TOOL_PROJECT": "/p q", **of_user}
    shown = subprocess.run(["sh", "-c", f"{lines}env"], env=environment, capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    assert {name: value for name, value in found.items() if name.startswith("TORCH_")} == expected
