"""Writes docs/reference.md from ``--help``: ``python -m remote_tool.cli.reference``."""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from remote_tool.cli.program import COMMANDS, PROGRAM, load_command, make_program
from remote_tool.protocol.job_fields import JOB_FIELDS

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup

FILE = Path(__file__).parents[2] / "docs" / "reference.md"
# What --help takes on a terminal of 80 columns.
WIDTH = 78

# The place of the keys of a job in the text, and those that are in no record.
OF_A_JOB = "OF_A_JOB"
MORE_OF_A_JOB = ('"values"', '"log"')
INTRODUCTION = """\
# Commands

This page is the output of `--help`, written by `python -m remote_tool.cli.reference`.

A command finds the workspace by searching for `.remote/` in the current folder and the folders above it. Without
`--server NAME`, a command acts on all servers. It works on servers in parallel; a failure on one does not stop the
others, and every failure is listed at the end.

Data goes to stdout, everything else to stderr. In a pipe, and with `NO_COLOR`, the text is plain. `run`, `job-tail` and
`--follow` pass on exact bytes when there is one source; with several, each line is labeled `server` or `server:rank`.
On a terminal, colors from servers are kept, and every other control character is escaped, as `\\x1b`.

| exit status | meaning |
|---|---|
| 0 | success |
| 1 | failure |
| 2 | wrong usage or configuration |
| 3 | some servers failed, others did not |
| 4 | no connection |
| 130 | Ctrl-C; jobs keep running |
| 141 | the reader of a pipe exited; jobs keep running |
| 143 | SIGTERM; jobs keep running |

`run`, `shell`, `job-wait`, `job-attach` and `--follow` exit with the job's own status, or 128+N if signal N ended it.

`--json` prints one document: `{"schema": 1, "jobs": […], "errors": […]}` for commands about jobs, `{"schema": 1,
"servers": […], "errors": […]}` for the others. `schema` changes when a key is removed or means something else; new keys
may come without that. [schema.json](schema.json) is the JSON Schema of all documents. Commands that start jobs add
`"warnings": […]` if there are any. The error of a server, `{"server", "message", "hint"}`, is in the document and on
stderr; `hint` says what to do next, and is empty if there is nothing to say. A command that fails before it contacts a
server, for example because of an unknown option, prints only `{"schema": 1, "errors": [{"server": "", …}]}`.

OF_A_JOB
  Times are ISO 8601 UTC, `log` is the local folder, `workdir` is relative to the project; `git` is null if unknown,
  and `slurm` is null without Slurm, else `{"job", "node"}`, the id of its batch job and the node that it began on.
  `copy` is the name of the copy of the project that the job runs in, and `environment_hash` is that of its
  environment; null if it runs in the project. `started_by` is the `user@machine` that started the job. `nice` is null
  if the niceness was not set. `gpus` lists the GPUs that the job was given, by number or UUID; null if it may use
  all. `gpu_count` is the number of GPUs that it waits for and `leased_gpus` has the UUIDs of those that its server
  reserved, or null; `after` lists the ids of the jobs that it waits for. `terminal` is `"command"` or `"shell"` for a
  job with a terminal, else null. `variables` lists the names of the variables that were given with the command, or
  null if unknown; `rerun_of` is the id of the job that it repeats, or null. `max_duration` and `stop_if_idle` are in
  seconds, or null without such a limit. `failed_attempts` says how the attempts before the last one ended, such as
  `"exit code 75"`. `values` has the last values in its output by name, such as `{"loss": "0.25"}`.
- `job-show`: the job also has `"folder"` and `"runs_in"` on its server, relative to the home folder, on this machine
  absolute; `"copy_is_kept"`, null if unknown; `"changes"`, the local file of the changes that were not committed;
  `"related": [{"id", "key", "server", "state"}]`, of its launch, and those that it waits for or repeats; `"error":
  {"server", "rank", "message", "output"}`, the first error; `"output"`, the local size of each stream;
  `"artifacts_folder"` and `"artifacts": [{"name", "size", "is_here"}]`; `"unknown"`, why `copy` or `artifacts` are not
  known; and `"next"`, commands.
- `job-diff`: in addition to the two jobs, `"differences": [{"field", "values"}]`, with the value of each job, and
  `"code": {"source", "diff", "notes"}`: a unified diff of `"copies"` or `"commits"`, and notes about missing parts.
- `job-stacks`: `{"groups": [{"label", "where", "processes"}], "kept": [{"job", "server", "text"}], "errors": [...]}`. A
  process: `"job", "server", "pid", "rank", "is_child", "command", "threads", "why"`; a thread is a list of `{"file",
  "line", "function"}`, the innermost call first, and the main thread is the last one. `kept` is of ended jobs.
- `top`, for each server: `"server", "cpu", "cores", "load", "memory_total", "memory_available", "disk_total",
  "disk_free", "disk_kind", "gpu_problem", "disk_problem", "gpus", "ranks"`; then `"jobs"` and `"errors"` as above. A
  GPU: `"index", "name", "load", "memory_used", "memory_total", "temperature", "power", "power_limit", "processes",
  "lease"`; a process on it: `"pid", "memory", "user", "job"`; the lease: `"user", "job", "name", "since"`, or null if
  nobody has reserved the GPU. The ranks of a running job: `"job", "alive", "ended", "problem"`, the last one with the
  error of the rank that failed first, if torch recorded it. Sizes are in bytes, loads in percent, temperatures in
  degrees Celsius, powers in watts; values that a server does not report are null. `gpu_problem` and `disk_problem` say
  why the GPUs or the disk could not be asked.
- `job-pull`: each job also has `"files": [{"name", "path", "size", "new"}]` and `"left_out": [{"name", "reason"}]`.
- `helper-fan-out`: in addition to the jobs, `"fan_out": {"launch_id", "name", "shards", "done", "failed", "gathered"}`:
  the number of shards, the numbers of finished and failed shards, and the paths of gathered files.
- `helper-sweep`: in addition to the jobs, `"sweep": {"launch_id", "name", "combinations", "done", "waiting",
  "missing"}`: the number of combinations, the numbers of those that had succeeded before and of those that were queued
  or running before, and how many did not start. The `node_rank` of a job is the number of its combination.
- `sweep-show`: `{"sweep": {"launch_id", "name", "command", "metric", "mode", "combinations": [{"number", "parameters",
  "state", "duration", "values", "best", "job"}]}, "errors": […]}`. `parameters` and the last `values` are by name, such
  as `{"lr": "0.1", "seed": "3"}`; `best` is of the metric, and null without one; `duration` is in seconds. A
  combination whose job never started, or whose record was removed, is `missing`, and its `job` is null.
- `clean`: `{"items": [{"server", "what", "count", "bytes", "goes", "frees", "reason"}], "kept": [{"job", "reason"}],
  "forgotten": [{"job", "reason"}], "removed", "errors": [...]}`. `server` is null for this machine. `goes` and `frees`
  count what was removed if `removed` is true, else what would be. The exit status is 1 if something removable was kept.
- `job-kill --orphans`: `{"strays": [{"server", "pid", "job", "key", "state", "command", "age_seconds", "memory_bytes",
  "gpu_memory_bytes", "ended"}], "errors": […]}`.
- `prepare`, for each server: `"server", "steps": [{"step", "outcome", "detail", "seconds"}], "changed", "seconds",
  "warnings", "python", "follows"`: the version of Python that jobs use, and, if servers share a folder, the server that
  did the work.
- `rsync`, for each server: `"server", "snapshot", "sent", "removed", "bytes", "skipped", "warnings", "relayed",
  "relayed_by", "changed"`.
- `data-sync`: `{"data": [{"name", "servers": [{"server", "changed", "sent", "bytes"}], "errors": […]}]}`.
- `run`, for each server: `"server", "exit_code", "stdout", "stderr"`.
- `keys`, for each server: `"server", "state", "key", "line", "file", "changed"`; the state is `works`, `added` or
  `missing`.
- `check`, for each server: `"name", "checks": [{"name", "status", "value", "hint"}]`; the status is `ok`, `warn`,
  `fail` or `unknown`. With `--exercise`, there is `"exercise": {"ranks", "all_reduce_bits_per_second", "devices":
  [{"server", "device", "name", "flops", "type", "median"}], "health": [{"server", "device", "temperature", "throttled",
  "uncorrected", "corrected"}]}`; `device` is null for a CPU.
- `bandwidth`: `{"links": [{"from", "to", "gbit_per_second", "round_trip_ms", "interface", "to_interface", "address",
  "method", "error"}], "errors": […]}`; values that were not measured are null.
- `gpus`, for each server: `"server", "gpus", "queue", "problem", "notes", "partitions"`. A GPU: `"index", "uuid",
  "name", "state", "memory_used", "memory_total", "load", "lease", "processes", "is_ours"`; the state is `free`,
  `leased` or `used`, and `is_ours` is false for one that `devices:` leaves out. A lease: `"user", "job", "name",
  "since"`; a process: `"pid", "memory", "user", "job"`; a job in the queue: `"job", "user", "gpus"`. `problem` says
  why its GPUs are unknown. `partitions` says in words what is free in each partition of a Slurm cluster.
- `forward`: `{"forwards": [{"server", "reverse", "listen", "port", "target"}], "errors": []}`, printed when all servers
  have answered; `port` is null for a Unix socket.
- `connections`, `disconnect`: `{"connections": [{"server", "address", "username", "since", "sessions", "pid"}],
  "errors": []}`; `pid` is null if the ssh that keeps the login does not answer.

`-v` may come before or after the command. It never shows values of `--env`.
"""


def reference() -> str:
    """Return the page."""
    program = make_program()
    before, after = INTRODUCTION.split(OF_A_JOB)
    parts = [
        f"{before}{_job_keys()}{after}",
        _section(PROGRAM, _context(program, PROGRAM).get_help()),
    ]
    names = {name: f"{PROGRAM} {name}" for name in COMMANDS}
    parts += [_section(title, _context(load_command(name), title).get_help()) for name, title in names.items()]
    return "\n".join(parts)


def _job_keys() -> str:
    """Return the keys of a job in ``--json``, in their order, as the page has them."""
    shown = [each.shown.partition(".") for each in JOB_FIELDS if each.shown]
    keys = []
    for name, parts in groupby(shown, key=lambda each: each[0]):
        inner = ", ".join(f'"{each[2]}"' for each in parts if each[2])
        keys.append(f'"{name}": {{{inner}}}' if inner else f'"{name}"')
    text = f"- A job: `{', '.join((*keys, *MORE_OF_A_JOB))}`."
    return textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _context(command: TyperCommand | TyperGroup, name: str) -> typer.Context:
    return typer.Context(command, info_name=name, terminal_width=WIDTH, **command.context_settings)


def _section(title: str, text: str) -> str:
    return f"## {title}\n```text\n{text.strip()}\n```\n"


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
