"""The table of ``check``: a column for each server where they fit, else one server below the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli import streams
from remote_tool.cli.plain import one_line
from remote_tool.cli.tables import plain_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.environments.checks import Check
    from remote_tool.workflows.check import ServerReport

WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "?"}


def print_reports(servers: Sequence[ServerReport]) -> None:
    """Print what was found; in a pipe a line for each check of each server."""
    if streams.is_terminal(streams.OUT):
        from remote_tool.cli.drawn_checks import draw  # noqa: PLC0415 - in a pipe Rich need not load

        draw(servers)
        return
    rows = [_row(server.name, check) for server in servers for check in server.checks]
    streams.write_text(streams.OUT, plain_rows(rows))


def shown(check: Check) -> str:
    """Return what a cell says, on one line."""
    return one_line(check.value)


def _row(server: str, check: Check) -> dict[str, str]:
    return {
        "SERVER": one_line(server),
        "CHECK": check.name.replace(" ", "-"),
        "STATUS": WORDS[check.status.value],
        "VALUE": shown(check),
    }
