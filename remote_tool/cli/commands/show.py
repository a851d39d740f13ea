"""The command job-show."""

from __future__ import annotations

import textwrap
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remote_tool.cli.following import show_problems
from remote_tool.cli.groups import ConnectionFlags
from remote_tool.cli.options import AsJson, complete
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import leave_unless_ok
from remote_tool.cli.output.json_output import jobs_document, print_json
from remote_tool.cli.output.sanitize import escape_controls, one_line
from remote_tool.cli.program import PROGRAM
from remote_tool.cli.tables.jobs import how_it_ended, readable_duration, short_command
from remote_tool.jobs.job import Job, JobState, own_start
from remote_tool.paths import readable_folder
from remote_tool.protocol.job_fields import JOB_FIELDS, SECONDS
from remote_tool.readable import counted, readable_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool.workflows.jobs.show import JobDetails

GAP = 2
MOST_FILES = 20
MOST_ERROR_LINES = 20
SHORT_COMMIT = 12
# These are not wrapped, so that they can be copied.
TO_COPY = {"command", "error", "next"}

Row = tuple[str, list[str]]


def job_show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Job by key or id.", autocompletion=complete("job"))],
    *,
    json: AsJson = False,
    connection: ConnectionFlags,
) -> None:
    """Show everything about one job: folders, command, code, GPUs, times, how it ended, files, and what to do next."""
    with connection.console("asking servers") as console:
        workspace = console.find_workspace()
        details = workspace.show_job(key)
    if json:
        print_json(_document(details, workspace.config.local.jobs))
    else:
        _print(details)
    show_problems(details)
    leave_unless_ok(details.exit_code)


def _print(details: JobDetails) -> None:
    """Print a line for each thing, and the other lines of a longer text below its first."""
    rows = [(name, lines) for name, lines in _rows(details) if lines]
    width = max(len(name) for name, _ in rows) + GAP
    columns = get_terminal_size().columns if streams.is_terminal(streams.OUT) else -1
    text = "".join(
        f"{(name if not index else ''):{width}}{line}".rstrip() + "\n"
        for name, lines in rows
        for index, line in enumerate(lines if name in TO_COPY else _wrapped(lines, columns - width))
    )
    streams.write_text(streams.OUT, text)


def _rows(details: JobDetails) -> Iterator[Row]:
    job = details.job
    yield "job", [_plain(f"{job.key}  {job.name}")]
    yield "id", [job.id]
    yield "server", [_plain(job.server)]
    yield "state", [how_it_ended(job) if job.state.is_finished else _plain(f"{job.state}  {job.reason}")]
    yield "exit", [job.signal or "" if job.exit_code is None else str(job.exit_code)] if job.state.is_finished else []
    yield "error", _error(details)
    yield "values", [_plain("  ".join(job.status_values))] if job.status_values else []
    yield "command", _lines(short_command(job) if job.launch_id else job.command)
    yield from _times(job)
    yield "attempts", _attempts(job)
    node = f", node {job.slurm_node}" if job.slurm_node else ""
    yield "Slurm job", [_plain(job.slurm_job + node)] if job.slurm_job else []
    yield "GPUs", [_gpus(job)]
    yield from _related_jobs(details)
    yield "code", _code(details)
    yield "runs in", [_plain(f"{job.server}:{readable_folder(details.runs_in)}")]
    yield (
        "folder",
        [_plain(f"{job.server}:{readable_folder(details.remote_folder)}" + ("  (removed)" if job.cleaned else ""))],
    )
    yield "here", [_plain(details.folder)]
    yield "output", [_output(details)]
    yield "artifacts", _artifacts(details)
    yield "tags", [_plain(", ".join(job.tags))] if job.tags else []
    yield "note", [_plain(job.note)] if job.note else []
    yield "by", [_plain(job.started_by)] if job.started_by else []
    yield "variables", [_plain(", ".join(job.variables))] if job.variables else []
    yield "limits", _limits(job)
    yield "next", _next_commands(details)


def _plain(text: object) -> str:
    return one_line(str(text)).strip()


def _lines(text: str) -> list[str]:
    return escape_controls(text).strip("\n").split("\n")


def _error(details: JobDetails) -> list[str]:
    failure = details.failure
    if failure is None:
        return []
    where = failure.server if failure.rank is None else f"rank {failure.rank} on {failure.server}"
    message = failure.message or failure.signal
    has_more = failure.traceback.strip() not in {"", message.strip()}
    lines = _lines(failure.traceback)[-MOST_ERROR_LINES:] if has_more else []
    first = [_plain(f"{where}: {message or 'reason unknown'}" if details.job.launch_id else message)]
    return [
        *(each for each in first if each),
        *(f"  {line}" for line in lines),
        *([failure.hint] if failure.hint else []),
    ]


def _times(job: Job) -> Iterator[Row]:
    now = time.time()
    began = job.started_at
    waited = (began or job.ended_at or now) - job.created_at
    is_queued = bool(job.gpu_count or job.after)
    shown = f", waits since then ({readable_duration(waited)})" if job.state is JobState.QUEUED else ""
    shown = f", waited {readable_duration(waited)}" if is_queued and began is not None else shown
    yield "queued" if is_queued else "requested", [_moment(job.created_at) + shown]
    yield "started", [_moment(began)] if began is not None else ["not yet" if job.may_run else "never"]
    if job.ended_at is not None:
        duration = job.duration(now)
        after = "" if duration is None else f", after {readable_duration(duration)}"
        yield "ended", [_moment(job.ended_at) + after]
    elif began is not None and (duration := job.duration(now)) is not None:
        yield "running for", [readable_duration(duration)]


def _moment(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _attempts(job: Job) -> list[str]:
    if not job.retries and not job.failed_attempts:
        return []
    count = len(job.failed_attempts) + (job.started_at is not None)
    ended = [f"{number}: {_plain(how)}" for number, how in enumerate(job.failed_attempts, 1)]
    # Slurm begins jobs again, whatever their retries are.
    of = f" of {1 + (job.retries or 0)}" if count <= 1 + (job.retries or 0) else ""
    return [f"{count}{of}", *ended]


def _gpus(job: Job) -> str:
    if job.gpu_count is not None:
        uuids = _plain(", ".join(job.leased_gpus or ()))
        return f"{job.gpu_count} reserved: {uuids}" if uuids else f"{job.gpu_count} to reserve"
    return _plain(", ".join(job.gpus)) if job.gpus else "all of the server"


def _related_jobs(details: JobDetails) -> Iterator[Row]:
    job = details.job
    by_id = {each.id: each for each in details.related}
    nodes = [each for each in details.related if each.launch_id == job.launch_id and job.launch_id]
    if job.launch_id:
        others = f"; the other nodes: {', '.join(_named(each) for each in nodes)}" if nodes else ""
        yield "launch", [_plain(f"{job.launch_id}, number {job.node_rank}{others}")]
    waits = [_named(by_id[each]) if each in by_id else each for each in job.after]
    yield "after", [_plain(", ".join(waits))] if waits else []
    if job.rerun_of:
        yield "repeats", [_plain(_named(by_id[job.rerun_of]) if job.rerun_of in by_id else job.rerun_of)]


def _named(job: Job) -> str:
    name = f", {job.name}" if job.name else ""
    return f"job {job.key} ({job.server}{name}): {job.state}"


def _code(details: JobDetails) -> list[str]:
    job = details.job
    lines = []
    if job.git_commit:
        branch = f" of {job.git_branch}" if job.git_branch else ""
        dirty = " with changes that were not committed" if job.git_dirty else ""
        lines.append(_plain(f"commit {job.git_commit[:SHORT_COMMIT]}{branch}{dirty}"))
    if details.changes is not None:
        lines.append(f"not committed: {details.changes.name}, in the folder here")
    if job.copy:
        place = f"may be on the server ({details.unknown.get('copy', '')})"
        if details.copy_is_kept is not None:
            place = "is on the server" if details.copy_is_kept else "is not on the server anymore"
        lines.append(_plain(f"copy {job.copy} {place}"))
    return lines or ["not recorded: the project is in no git repository, or was not sent"]


def _output(details: JobDetails) -> str:
    sizes = {name: size for name, size in details.output.items() if size or name in {"out", "err"}}
    total = f"{readable_size(sum(sizes.values()))} here" if sizes else "nothing here yet"
    return total if details.job.logs_complete else f"{total}; job-tail fetches the rest"


def _artifacts(details: JobDetails) -> list[str]:
    files = details.artifacts
    lines = [
        _plain(f"{readable_size(file.size):>10}  {file.name}" + ("" if file.is_here else "  (on the server)"))
        for file in files[:MOST_FILES]
    ]
    if len(files) > MOST_FILES:
        lines.append(f"and {counted(len(files) - MOST_FILES, 'file')} more; --json lists all")
    if files:
        here = [file for file in files if file.is_here]
        total = readable_size(sum(file.size for file in files))
        where = f", {len(here)} of them in {details.artifacts_folder}" if here else ""
        lines.insert(0, _plain(f"{counted(len(files), 'file')}, {total}{where}"))
    if "artifacts" in details.unknown:
        lines.append(_plain(f"those on the server are not known: {details.unknown['artifacts']}"))
    patterns = ", ".join(pattern.glob for pattern in details.job.artifacts)
    return lines or ([_plain(f"none yet for {patterns}")] if patterns else [])


def _limits(job: Job) -> list[str]:
    limits = []
    for field in JOB_FIELDS:
        value = getattr(job, field.name)
        if field.phrase and value is not None and value != field.default:
            limits.append(field.phrase.format(readable_duration(value) if field.kind is SECONDS else value))
    return [_plain(", ".join(limits))] if limits else []


def _wrapped(lines: list[str], width: int) -> Iterator[str]:
    """Break lines between words; a path that is longer than the terminal stays whole."""
    for line in lines:
        wrapped = textwrap.wrap(line, max(width, 20), break_long_words=False, break_on_hyphens=False)
        yield from wrapped if 0 < width < len(line) else [line]


def _next_commands(details: JobDetails) -> list[str]:
    """Return the commands that may be useful next."""
    job, key = details.job, details.job.key
    commands = [f"job-tail {key}" if job.may_run else f"job-tail {key} --no-follow"]
    if job.cleaned and not details.output:
        commands = []
    if job.state is JobState.RUNNING:
        commands += [f"job-attach {key}"] if job.terminal else []
        commands += [f"job-stacks {key}", f"job-kill {key}"]
    elif job.may_run:
        commands += [f"job-kill {key}"]
    elif job.started_at is None and (job.gpu_count or job.after) and job.state.is_final:
        commands += [f"job-requeue {key}"]
    if "artifacts" in details.unknown or not all(file.is_here for file in details.artifacts):
        commands.append(f"job-pull {key}")
    if not job.may_run:
        _, again = own_start(job) or ("", f"job-rerun {key}")
        commands.append(again)
    if details.errors:
        commands.append(f"check --server {job.server}")
    return [f"{PROGRAM} {command}" for command in commands]


def _document(details: JobDetails, jobs_folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the document: that of a list with one job, which has more keys."""
    document = jobs_document([details.job], details.errors, jobs_folder)
    failure = details.failure
    document["jobs"][0].update(
        {
            "folder": details.remote_folder,
            "runs_in": details.runs_in,
            "copy_is_kept": details.copy_is_kept,
            "changes": None if details.changes is None else str(details.changes),
            "related": [
                {"id": job.id, "key": job.key, "server": job.server, "state": job.state} for job in details.related
            ],
            "error": None
            if failure is None
            else {
                "server": failure.server,
                "rank": failure.rank,
                "message": failure.message,
                "output": failure.traceback,
            },
            "output": dict(details.output),
            "artifacts_folder": str(details.artifacts_folder),
            "artifacts": [
                {"name": file.name, "size": file.size, "is_here": file.is_here} for file in details.artifacts
            ],
            "unknown": dict(details.unknown),
            "next": _next_commands(details),
        }
    )
    return document
