"""The command bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ConnectionFlags, Targets
from remote_tool.cli.options import AsJson
from remote_tool.cli.output.console import inform, leave_unless_ok, print_data, show_failures
from remote_tool.cli.output.json_output import errors_as_json, print_json
from remote_tool.cli.output.sanitize import one_line
from remote_tool.errors import JobError
from remote_tool.workflows.servers.bandwidth import FIREWALL_HINT, readable_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.workflows.servers.bandwidth import BandwidthAnswer, MeasuredLink

WIDTH = 80
GAP = 2
LONGEST_NAME = 16
CORNER = "Gbit/s"
ITSELF, UNKNOWN = "-", "?"
SLOW, GOOD_FOR_ALL = 10.0, 25.0


def bandwidth(
    *,
    targets: Targets,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", help="Measure each direction for N seconds.")
    ] = 2.0,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Measure network bandwidth between each pair of servers, over the addresses that a launch uses."""
    with connection.console("connecting") as console:
        answer = targets.find_workspace(console).measure_bandwidth(targets.servers, seconds=seconds)
    if json:
        print_json(_document(answer))
    elif answer.links:
        print_data(matrix(answer))
    for text in remarks(answer):
        inform(text)
    show_failures(answer.errors)
    show_failures(_unmeasured(answer))
    leave_unless_ok(answer.exit_code)


def matrix(answer: BandwidthAnswer) -> str:
    """Return the matrix of rates, from the row's server to the column's; columns that do not fit follow below."""
    rates = {(link.source, link.target): link.gbit for link in answer.links}
    names = [_short(name) for name in answer.servers]
    name_width = max(len(CORNER), *map(len, names))
    width = max(5, *map(len, names))
    count = max(1, (WIDTH - name_width) // (width + GAP))
    blocks = [answer.servers[start : start + count] for start in range(0, len(answer.servers), count)]
    return "\n\n".join(_block(answer.servers, columns, rates, (name_width, width)) for columns in blocks)


def remarks(answer: BandwidthAnswer) -> list[str]:
    """Name the slowest link, and warn if it is slow."""
    slowest = answer.slowest
    if slowest is None:
        return []
    name = f"{slowest.source} to {slowest.target}"
    lines = [f"slowest: {name}, {_rate(slowest)} over {slowest.interface or 'an unknown interface'}"]
    assert slowest.gbit is not None
    if slowest.gbit < SLOW:
        lines.append(f"warning: below {SLOW:g} Gbit/s; training over {name} waits for the network")
    elif slowest.gbit < GOOD_FOR_ALL:
        lines.append(f"warning: below {GOOD_FOR_ALL:g} Gbit/s; training on all servers is limited by {name}")
    return lines


def _rate(link: MeasuredLink) -> str:
    assert link.gbit is not None
    return f"{readable_rate(link.gbit)} Gbit/s"


def _block(
    rows: Sequence[str],
    columns: Sequence[str],
    rates: dict[tuple[str, str], float | None],
    widths: tuple[int, int],
) -> str:
    name_width, width = widths
    lines = [[CORNER, *map(_short, columns)]]
    lines += [[_short(row), *(_cell(row, column, rates) for column in columns)] for row in rows]
    return "\n".join(
        line[0].ljust(name_width) + "".join(text.rjust(width + GAP) for text in line[1:]) for line in lines
    )


def _cell(source: str, target: str, rates: dict[tuple[str, str], float | None]) -> str:
    if source == target:
        return ITSELF
    rate = rates.get((source, target))
    return UNKNOWN if rate is None else readable_rate(rate)


def _short(name: str) -> str:
    shown = one_line(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def _unmeasured(answer: BandwidthAnswer) -> dict[str, JobError]:
    """Return the error of each pair of servers that was not measured, once."""
    return {
        f"{link.source} and {link.target}": JobError(link.error, hint=FIREWALL_HINT)
        for link in answer.links
        if link.error and answer.servers.index(link.source) < answer.servers.index(link.target)
    }


def _document(answer: BandwidthAnswer) -> dict[str, Any]:
    return {"links": [_link_as_json(link) for link in answer.links], "errors": errors_as_json(answer.errors)}


def _link_as_json(link: MeasuredLink) -> dict[str, Any]:
    return {
        "from": link.source,
        "to": link.target,
        "gbit_per_second": link.gbit,
        "round_trip_ms": None if link.round_trip is None else link.round_trip * 1000,
        "interface": link.interface or None,
        "to_interface": link.target_interface or None,
        "address": link.address or None,
        "method": link.method or None,
        "error": link.error or None,
    }
