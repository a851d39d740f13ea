"""The command that shows everything about one job."""

from __future__ import annotations

from typing import Annotated

import typer

from remote_tool.cli.following import show_problems
from remote_tool.cli.groups import Connection
from remote_tool.cli.options import AsJson, complete
from remote_tool.cli.output.console import leave_unless_ok
from remote_tool.cli.output.json_output import details_document, print_json
from remote_tool.cli.tables.job_details import next_commands, print_details


def job_show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Job by key or id.", autocompletion=complete("job"))],
    *,
    json: AsJson = False,
    connection: Connection,
) -> None:
    """Show everything about one job: folders, command, code, GPUs, times, how it ended, files, and what to do next."""
    with connection.console("asking servers") as console:
        workspace = console.find_workspace()
        details = workspace.show_job(key)
    if json:
        print_json(details_document(details, workspace.config.local.jobs, next_commands(details)))
    else:
        print_details(details)
    show_problems(details)
    leave_unless_ok(details.exit_code)
