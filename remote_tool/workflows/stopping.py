"""Having a server stop jobs, and what it says of those that do not end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.supervisor.records import LONGEST_GRACE
from remote_tool.workflows.supervisor import call_until_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.workflows.context import Context

# What the server may take beyond the grace: SIGKILL, the scan that proves it, and writing the end.
STOP_MARGIN = 30.0
SHOWN_PIDS = 20


async def stop_on_server(
    context: Context, server: str, ids: Sequence[str], signal: str, grace: float | None
) -> dict[str, str]:
    """Stop jobs of a server with one question; return why some of them have not ended, by id.

    Raises:
        JobError: The server cannot do it, or does not answer in time.
        ConnectError: It cannot be reached.
    """
    wish = {"ids": list(ids), "signal": signal, "grace": grace}
    within = longest_stop(grace)
    answer = await call_until_answered(context.pool, context.config, server, "stop", wish, within=within)
    entries = answer.get("jobs")
    told = (
        {str(each.get("id")): each for each in entries if isinstance(each, dict)} if isinstance(entries, list) else {}
    )
    return {job_id: problem for job_id in ids if (problem := _problem(told.get(job_id)))}


def longest_stop(grace: float | None) -> float:
    """Return how long a server may take to stop jobs; it knows each one's own grace, of which 45 s is the longest."""
    return (60.0 if grace is None else min(grace, LONGEST_GRACE)) + STOP_MARGIN


def _problem(entry: dict[str, object] | None) -> str:
    if entry is None:
        return "the server does not say what became of it"
    if entry.get("error"):
        return str(entry["error"])
    if isinstance(left := entry.get("left"), list) and left:
        return f"some of its processes do not die: {', '.join(str(pid) for pid in left[:SHOWN_PIDS])}"
    return ""
