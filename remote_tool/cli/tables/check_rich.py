"""The table of ``check`` on a terminal: one column per server if they fit, else one table per server.

It is a module of its own because it loads Rich, which a command in a pipe does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.plain import GAP, STATUS_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.environments.checks.checks import Check
    from remote_tool.workflows.servers.check import ServerReport

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}
WIDEST_NAME = 13
# Width for a status word and a value wrapped to a few lines.
LEAST_COLUMN = 28
LONGEST_CELL = 90


def draw(servers: Sequence[ServerReport]) -> None:
    """Draw all servers."""
    console = Console(highlight=False, markup=False, emoji=False)
    width = console.width - WIDEST_NAME - GAP
    if len(servers) * (LEAST_COLUMN + GAP) <= width and _is_short(servers):
        console.print(_side_by_side(servers))
        return
    for server in servers:
        console.print(Text(one_line(server.name), style="bold"))
        console.print(_single(server))


def _is_short(servers: Sequence[ServerReport]) -> bool:
    """Return whether no cell would become very high, as for an unreachable server."""
    return all(len(check.value) <= LONGEST_CELL for server in servers for check in server.checks)


def _side_by_side(servers: Sequence[ServerReport]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", expand=True)
    table.add_column("CHECK", width=WIDEST_NAME, no_wrap=True)
    for server in servers:
        table.add_column(one_line(server.name), ratio=1, overflow="fold")
    by_name = [{check.name: check for check in server.checks} for server in servers]
    for name in _names(servers):
        table.add_row(name, *(_cell(checks.get(name)) for checks in by_name))
    return table


def _names(servers: Sequence[ServerReport]) -> list[str]:
    """Return every check once, in the order of the server with the most checks."""
    longest = max(servers, key=lambda server: len(server.checks))
    return list(dict.fromkeys(check.name for server in (longest, *servers) for check in server.checks))


def _cell(check: Check | None) -> Text:
    if check is None:
        return Text("-", style="dim")
    word = STATUS_WORDS[check.status.value]
    return Text.assemble((f"{word} ", STYLES[check.status.value]), one_line(check.value))


def _single(server: ServerReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False, expand=True)
    table.add_column(width=WIDEST_NAME + GAP, no_wrap=True)
    table.add_column(width=4, no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for check in server.checks:
        status = check.status.value
        table.add_row(
            f"{' ' * GAP}{check.name}", Text(STATUS_WORDS[status], style=STYLES[status]), Text(one_line(check.value))
        )
    return table
