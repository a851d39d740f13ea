"""The command check."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.groups import ConnectionFlags, Targets
from remote_tool.cli.options import AsJson
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, leave_unless_ok, say
from remote_tool.cli.output.json_output import errors_as_json, print_json
from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.plain import STATUS_WORDS, plain_rows
from remote_tool.errors import UsageError
from remote_tool.protocol.limits import EXERCISE_SECONDS
from remote_tool.readable import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.environments.checks.checks import Check
    from remote_tool.workflows.exercise.exercise import Exercise
    from remote_tool.workflows.servers.check import CheckAnswer, ServerReport


def check(
    *,
    targets: Targets,
    exercise: Annotated[
        bool,
        typer.Option("--exercise", help="Also measure all GPUs and the network under load, by jobs of their own."),
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="N", help="Exercise for at most N seconds, 20 to 3600, after waiting; default: 60."
        ),
    ] = None,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Check that servers are ready for training together, and suggest fixes; changes nothing.

    With --exercise, jobs multiply matrices on every GPU, or on the CPU where there is none, and sum tensors over all
    servers; a GPU or a server much slower than the others fails. Without torch in the environment, it fails too.
    """
    if seconds is not None and not exercise:
        raise UsageError("--seconds is for --exercise", hint="remote-tool check --exercise --seconds 30")
    limit = EXERCISE_SECONDS if seconds is None else seconds
    with connection.console("checking") as console:
        answer = targets.find_workspace(console).check(targets.servers, exercise=exercise, seconds=limit)
    if json:
        print_json(_document(answer))
    else:
        _print(answer.servers)
        _show_hints(answer.servers)
        inform(_summary(answer.servers))
    leave_unless_ok(answer.exit_code)


def _document(answer: CheckAnswer) -> dict[str, Any]:
    servers = [{"name": each.name, "checks": [asdict(check) for check in each.checks]} for each in answer.servers]
    document = {"servers": servers, "errors": errors_as_json(answer.errors)}
    return document if answer.exercise is None else {**document, "exercise": _measured(answer.exercise)}


def _measured(exercise: Exercise) -> dict[str, Any]:
    return {
        "ranks": exercise.ranks,
        "all_reduce_bits_per_second": exercise.all_reduce_bits,
        "devices": [asdict(device) for device in exercise.devices],
        "health": [{"server": server, **asdict(each)} for server, health in exercise.health.items() for each in health],
    }


def _print(servers: Sequence[ServerReport]) -> None:
    """Print the results: on a terminal one column per server if they fit; in a pipe one line per check and server."""
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


def _show_hints(servers: Sequence[ServerReport]) -> None:
    """Show the fix for each failed check, once for all servers that need the same."""
    hints: dict[tuple[str, str], list[str]] = {}
    for server in servers:
        for check in server.checks:
            if check.hint:
                hints.setdefault((check.name, check.hint), []).append(server.name)
    for (name, hint), names in hints.items():
        say(("hint", "bold"), f": {', '.join(names)}: {name}: {one_line(hint)}")


def _summary(servers: Sequence[ServerReport]) -> str:
    counts = {word: sum(check.status == word for each in servers for check in each.checks) for word in ("fail", "warn")}
    number = counted(len(servers), "server")
    if not counts["fail"]:
        warnings = f", {counted(counts['warn'], 'warning')}" if counts["warn"] else ""
        return f"{number} ready for training{warnings}"
    return f"{number}: {counted(counts['fail'], 'failure')}, {counted(counts['warn'], 'warning')}"
