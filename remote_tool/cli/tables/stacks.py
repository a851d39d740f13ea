"""The stacks of processes, as lines: equal stacks are shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.output.sanitize import one_line
from remote_tool.jobs.stacks import StackGroup, grouped
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.workflows.jobs.stacks import StacksAnswer


def stack_lines(answer: StacksAnswer, *, is_whole: bool = False) -> list[str]:
    """Return each group with the stack of its first process; unless ``is_whole``, calls of the launcher are counted."""
    return [line for group in grouped(answer.processes) for line in _lines(group, is_whole=is_whole)]


def _lines(group: StackGroup, *, is_whole: bool) -> Iterator[str]:
    yield one_line(f"{group.label}: {group.where}")
    process = group.processes[0]
    shown, folded = (process.stack, 0) if is_whole else process.folded
    for frame in shown:
        line = f":{frame.line}" if frame.line else ""
        yield one_line(f"    {frame.function}  {frame.file}{line}")
    if folded:
        yield f"    and {counted(folded, 'call')} of the launcher"
