"""Warn about wrong clocks of servers, which are not used for calculations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from remote_tool.protocol.job_fields import is_number
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.workflows.context import Context

LARGEST_SKEW = 60.0
MINUTE, HOUR, DAY = 60, 3600, 86400


def warn_of_skew(context: Context, server: str, answer: Mapping[str, Any], asked_at: float) -> None:
    """Warn when a server's time is not between our request and its answer."""
    now = answer.get("now")
    if now is None or not is_number(now):
        return
    behind, ahead = asked_at - now, now - time.time()
    if max(behind, ahead) > LARGEST_SKEW:
        way = f"{_readable(behind)} behind" if behind > ahead else f"{_readable(ahead)} ahead of"
        context.report(Notice(server, f"its clock is {way} this computer's"))


def _readable(seconds: float) -> str:
    for unit, size in (("days", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
