"""Writes docs/reference.md from ``--help``: ``python -m remote_tool.cli.reference``."""

from __future__ import annotations

from pathlib import Path

import typer

from remote_tool.cli.app import COMMANDS, PROGRAM, load_command, make_program

FILE = Path(__file__).parents[2] / "docs" / "reference.md"
# What --help takes on a terminal of 80 columns.
WIDTH = 78

INTRODUCTION = """\
# Commands

This page is what `--help` says; `python -m remote_tool.cli.reference` writes it.

A command finds the workspace by looking for `.remote/` upward from the current folder. `--server NAME` may be
repeated; without it a command acts on all servers. Work on several servers goes on at once, one that fails stops no
other, and the end names every failure.

Data goes to stdout, everything else to stderr. In a pipe, and with `NO_COLOR`, the text is plain. `run`, `job-tail` and
`--follow` pass on exact bytes when one program speaks; of several, each line stands whole behind `server` or
`server:rank`. On a terminal colours pass, and every other control character of a server is written out, as `\\x1b`.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | it failed |
| 2 | wrong usage or configuration |
| 3 | some servers failed, others did not |
| 4 | no connection |
| 130 | Ctrl-C; jobs go on |
| 141 | the reader of a pipe has gone; jobs go on |
| 143 | SIGTERM; jobs go on |

`run`, `job-wait` and `--follow` end with the job's own status, 128+N for signal N.

`--json` prints one document: `{"jobs": […], "errors": […]}` of commands about jobs, `{"servers": […], "errors": […]}`
of the others. A start adds `"warnings": […]` where there are any. An error of a server, `{"server", "message"}`, is
in it and on stderr too; an error before any server was asked is on stderr only, and stdout stays empty.

- A job: `"key", "id", "launch_id", "node_rank", "server", "state", "exit_code", "signal", "reason", "pid", "tags",
  "command", "created_at", "started_at", "ended_at", "log"`. Times are ISO 8601 UTC, `log` is the folder here.
- `job-pull`: each job has `"files": [{"name", "path", "size", "new"}]` and `"left_out": [{"name", "reason"}]` too.
- `helper-fan-out`: beside the jobs `"fan_out": {"launch_id", "name", "shards", "done", "failed", "gathered"}`: how many
  shards there are, the numbers of those that are done and of those that failed, and the gathered files here.
- `job-kill --strays`: `{"strays": [{"server", "pid", "job", "key", "state", "command", "age_seconds", "memory_bytes",
  "gpu_memory_bytes", "ended"}], "errors": […]}`.
- `prepare`, for each server: `"server", "steps": [{"step", "outcome", "detail", "seconds"}], "changed", "seconds",
  "warnings"`.
- `rsync`, for each server: `"server", "snapshot", "sent", "removed", "bytes", "skipped", "warnings", "relayed",
  "relayed_by", "changed"`.
- `run`, for each server: `"server", "exit_code", "stdout", "stderr"`.
- `keys`, for each server: `"server", "state", "key", "line", "file", "changed"`; the state is `works`, `added` or
  `missing`.
- `check`, for each server: `"name", "checks": [{"name", "status", "value", "hint"}]`; the status is `ok`, `warn`,
  `fail` or `unknown`.
- `bandwidth`: `{"links": [{"from", "to", "gbit_per_second", "round_trip_ms", "interface", "to_interface", "address",
  "method", "error"}], "errors": […]}`; what was not measured is null.

`-v` may stand before the command or after it. It never shows the values of `--env`.
"""


def reference() -> str:
    """Return the page."""
    program = make_program()
    parts = [
        INTRODUCTION,
        _section(PROGRAM, typer.Context(program, info_name=PROGRAM, terminal_width=WIDTH).get_help()),
    ]
    for name in COMMANDS:
        context = typer.Context(load_command(name), info_name=f"{PROGRAM} {name}", terminal_width=WIDTH)
        parts.append(_section(f"{PROGRAM} {name}", context.get_help()))
    return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n```text\n{text.strip()}\n```\n"


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
