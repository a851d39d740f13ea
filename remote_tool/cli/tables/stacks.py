"""The stacks of processes, as lines: equal ones once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.output.sanitize import one_line
from remote_tool.jobs.stacks import Group, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.workflows.jobs.stacks import StacksAnswer


def stack_lines(answer: StacksAnswer) -> list[str]:
    """Return each group with the stack of its first process."""
    return [line for group in grouped(answer.processes) for line in _lines(group)]


def _lines(group: Group) -> Iterator[str]:
    yield one_line(f"{group.label}: {group.where}")
    for frame in group.processes[0].stack:
        line = f":{frame.line}" if frame.line else ""
        yield one_line(f"    {frame.function}  {frame.file}{line}")
