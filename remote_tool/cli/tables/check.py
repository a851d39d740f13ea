"""The table of ``check``: one column per server if they fit, else one table per server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.plain import STATUS_WORDS, plain_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.environments.checks.checks import Check
    from remote_tool.workflows.servers.check import ServerReport


def print_reports(servers: Sequence[ServerReport]) -> None:
    """Print the results; in a pipe, one line per check and server."""
    if streams.is_terminal(streams.OUT):
        from remote_tool.cli.tables.check_rich import draw  # noqa: PLC0415 - in a pipe Rich need not load

        draw(servers)
        return
    rows = [_row(server.name, check) for server in servers for check in server.checks]
    streams.write_text(streams.OUT, plain_rows(rows))


def _row(server: str, check: Check) -> dict[str, str]:
    return {
        "SERVER": one_line(server),
        "CHECK": check.name.replace(" ", "-"),
        "STATUS": STATUS_WORDS[check.status.value],
        "VALUE": one_line(check.value),
    }
