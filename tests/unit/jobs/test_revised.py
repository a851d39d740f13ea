"""What was read before is not written over what is known now."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.jobs.job import JobSpec, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.workflows.jobs.stop import record_pending_stops
from remote_tool.workflows.status.query import StatusAnswer
from remote_tool.workflows.status.refresh import _record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.row(134)
def test_a_start_is_confirmed_while_another_terminal_asks_about_it_or_notes_that_it_is_to_be_stopped(
    tmp_path: Path,
) -> None:
    registry = Registry(tmp_path)
    context: Any = SimpleNamespace(registry=registry, report=lambda _event: None)
    (starting,) = registry.create([JobSpec(new_job_id(), "first", "true")])
    running = replace(starting, state=JobState.RUNNING, pid=7, seen_at=5.0, folder_id="a" * 32)
    registry.update([running])
    record_pending_stops(context, [starting])
    assert registry.find([starting.id])[starting.id] == replace(running, stop_signal="SIGTERM")
    _record(context, "first", [starting], StatusAnswer(folder_id="a" * 32))
    assert registry.find([starting.id])[starting.id] == replace(running, stop_signal="SIGTERM")
    registry.update([replace(running, state=JobState.SUCCEEDED, exit_code=0)])
    record_pending_stops(context, [running])
    _record(context, "first", [running], StatusAnswer(folder_id="a" * 32))
    assert registry.find([starting.id])[starting.id].state is JobState.SUCCEEDED
