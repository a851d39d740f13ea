"""The command that looks whether servers are fit for training."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from remote_tool.cli.check_table import print_reports
from remote_tool.cli.console import Console, inform, leave_unless_ok, say
from remote_tool.cli.json_output import errors_as_json, print_json
from remote_tool.cli.options import AsJson, Hostfile, Hosts, Servers, Targets, Verbose
from remote_tool.cli.plain import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.workflows.check import CheckAnswer, ServerReport


def check(
    *,
    server: Servers = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Look whether servers are fit for training together, and say what mends what is not; changes nothing."""
    targets = Targets.read(server, hosts, hostfile)
    with Console(verbose=verbose, activity="looking") as console:
        answer = console.find_workspace(targets).check(targets.servers)
    if json:
        print_json(_document(answer))
    else:
        print_reports(answer.servers)
        _show_hints(answer.servers)
        inform(_summary(answer.servers))
    leave_unless_ok(answer.exit_code)


def _document(answer: CheckAnswer) -> dict[str, Any]:
    servers = [{"name": each.name, "checks": [asdict(check) for check in each.checks]} for each in answer.servers]
    return {"servers": servers, "errors": errors_as_json(answer.errors)}


def _show_hints(servers: Sequence[ServerReport]) -> None:
    """Name what mends each check, once for all servers that need the same."""
    hints: dict[tuple[str, str], list[str]] = {}
    for server in servers:
        for check in server.checks:
            if check.hint:
                hints.setdefault((check.name, check.hint), []).append(server.name)
    for (name, hint), names in hints.items():
        say(("hint", "bold"), f": {', '.join(names)}: {name}: {one_line(hint)}")


def _summary(servers: Sequence[ServerReport]) -> str:
    counts = {word: sum(check.status == word for each in servers for check in each.checks) for word in ("fail", "warn")}
    number = "1 server" if len(servers) == 1 else f"{len(servers)} servers"
    if not counts["fail"]:
        found = f", {counts['warn']} to look at (warn)" if counts["warn"] else ""
        return f"{number} fit for training{found}"
    return f"{number}: {counts['fail']} to mend (FAIL), {counts['warn']} to look at (warn)"
