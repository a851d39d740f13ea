"""job-diff: compare two jobs: how they were started, their code, and how they ended."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.launchers.launch_options import read_options
from remote_tool.protocol.job_fields import JOB_FIELDS, REQUEST
from remote_tool.redaction import redact
from remote_tool.workflows.git_state import DIFF_OPTIONS, FILE_START, ask_git, excluding
from remote_tool.workflows.jobs.listing import list_jobs
from remote_tool.workflows.selection import JobsAnswer, JobSelection, find_job
from remote_tool.workflows.start.copies import diff_copies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context


LARGEST_DIFF = 4 * 1024 * 1024
GIT_SECONDS = 20.0
_REMOVED = re.compile(rb"diff --git a/(.+) b/\1\ndeleted file mode ")


@dataclass(frozen=True)
class CodeDiff:
    """The difference of the code of two jobs.

    Attributes:
        text: A unified diff; empty if the code is the same, or not known.
        source: ``copies`` or ``commits``, which were compared; empty if neither could be.
        notes: The parts that are missing in the text, and the reasons.
    """

    text: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FieldDifference:
    """A field in which two jobs differ.

    Attributes:
        field: Its name; ``values.NAME`` for a value in their output.
        values: The values of the first and of the second job.
    """

    field: str
    values: tuple[Any, Any]


@dataclass(frozen=True)
class JobDiff(JobsAnswer):
    """Two jobs, the fields in which they differ, and the difference of their code."""

    differences: tuple[FieldDifference, ...] = ()
    code: CodeDiff = field(default_factory=CodeDiff)


# Ids, keys, moments, and what a launch says in its options always differ; the command and artifacts are described.
_NOT_COMPARED = {
    *("id", "launch_id", "node_rank", "rank_offset", "launch_options", "created_at", "rerun_of"),
    *("command", "artifacts", "any_of", "slots"),
}
_SETTINGS = tuple(each.name for each in JOB_FIELDS if each.origin == REQUEST and each.name not in _NOT_COMPARED)
_RESULTS = ("state", "exit_code", "signal", "reason")


async def diff_jobs(context: Context, first: str, second: str) -> JobDiff:
    """Compare two jobs by key or id; servers are asked only about a job that has not ended.

    Raises:
        UsageError: There is no such job.
    """
    jobs = context.registry.load()[0]
    pair = [find_job(jobs, word) for word in (first, second)]
    ids = tuple(job.id for job in pair if not job.state.is_final)
    answer = JobsAnswer(())
    if ids:
        answer = await list_jobs(context, JobSelection(ids, stopped=True, hidden=True))
    current = {job.id: job for job in answer.jobs}
    one, other = (current.get(job.id, job) for job in pair)
    return JobDiff(
        (one, other),
        answer.errors,
        answered=answer.answered,
        differences=compare_jobs(one, other, time.time()),
        code=await _diff_code(context, one, other),
    )


def compare_jobs(first: Job, second: Job, now: float) -> tuple[FieldDifference, ...]:
    """Return the differences of two jobs, settings first."""
    one, other = _fields_of(first, now), _fields_of(second, now)
    return tuple(
        FieldDifference(name, (one.get(name), other.get(name)))
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    )


def _fields_of(job: Job, now: float) -> dict[str, Any]:
    duration = job.duration(now)
    return {
        **_command_of(job),
        **{name.replace("git_", "git."): _as_json(getattr(job, name)) for name in _SETTINGS},
        "artifacts": [pattern.glob for pattern in job.artifacts] or None,
        **{name: _as_json(getattr(job, name)) for name in _RESULTS},
        "duration": None if duration is None else round(duration),
        **{f"values.{name}": value for name, _, value in (each.partition("=") for each in job.status_values)},
    }


def _command_of(job: Job) -> dict[str, Any]:
    """Return the command that the user gave; the command of a launched job also has ports and ids of its nodes."""
    try:
        options = read_options(job.launch_options) if job.launch_options else None
    except JobError:
        options = None
    if options is None:
        _, found, command = job.command.partition(" --redirects 3 ")
        return {"command": command if job.launch_id and found else job.command}
    return {"command": options.command, **options.of_request, "nodes": options.nodes}


def _as_json(value: object) -> object:
    """Return a value in the form of JSON; None if it was not set."""
    if isinstance(value, tuple):
        return list(value) or None
    return None if value == "" else value


async def _diff_code(context: Context, one: Job, other: Job) -> CodeDiff:
    """Compare the code of two jobs by their copies on a server, or by commits and recorded changes."""
    if one.copy and one.copy == other.copy:
        return CodeDiff(source="copies")
    problem = "they did not run in copies on one server"
    if one.copy and other.copy and one.server == other.server and one.server in context.config.servers:
        try:
            text = await diff_copies(context, one.server, one.copy, other.copy)
            return CodeDiff(_readable(text), "copies")
        except RemoteToolError as error:
            problem = str(error)
    if not one.git_commit or not other.git_commit:
        unknown = ", ".join(str(job.key) for job in (one, other) if not job.git_commit)
        return CodeDiff(notes=(f"{problem}, and no commit is recorded for job {unknown}",))
    return await _diff_commits(context, one, other)


async def _diff_commits(context: Context, one: Job, other: Job) -> CodeDiff:
    local, notes = context.config.local, []
    root = local.root
    exclusions = excluding((local.jobs_folder, local.logs_folder, *local.artifacts_in_project))
    with tempfile.TemporaryDirectory(prefix="remote-tool-") as folder:
        trees = []
        for job in (one, other):
            changes = local.changes(job.id)
            tree = None
            if job.git_dirty and changes.is_file():
                tree = await _make_tree(root, job.git_commit, changes.read_bytes(), Path(folder))
            if job.git_dirty and tree is None:
                notes.append(f"job {job.key} also had changes that were not committed, and they are not recorded whole")
            trees.append(tree or job.git_commit)
        variables, words = (
            await _variables_for(root, Path(folder)),
            ("diff", *DIFF_OPTIONS, *trees, "--", ".", *exclusions),
        )
        text = await ask_git(root, *words, most=LARGEST_DIFF, seconds=GIT_SECONDS, variables=variables)
    if text is None:
        return CodeDiff(notes=(*notes, f"git does not have {one.git_commit[:12]} or {other.git_commit[:12]} here"))
    return CodeDiff(_readable(text), "commits", tuple(notes))


async def _make_tree(root: Path, commit: str, patch: bytes, folder: Path) -> str | None:
    """Apply a patch to a commit, outside of the repository; return the id of the tree, or None if it does not fit."""
    variables = await _variables_for(root, folder)
    prefix = (await ask_git(root, "rev-parse", "--show-prefix") or b"").decode(errors="surrogateescape").strip()
    sections = FILE_START.split(patch)
    removed = [found[1] for part in sections if (found := _REMOVED.match(part))]
    applicable = b"".join(part for part in sections if b"\n@@ " in part and not _REMOVED.match(part))
    file = folder / "patch"
    file.write_bytes(applicable)
    steps = [["read-tree", commit]]
    if applicable:
        directory = [f"--directory={prefix}"] if prefix else []
        steps.append(["apply", "--cached", "--whitespace=nowarn", *directory, str(file)])
    if removed:
        names = [name.decode(errors="surrogateescape") for name in removed]
        steps.append(["update-index", "--force-remove", "--", *names])
    for step in steps:
        if await ask_git(root, *step, seconds=GIT_SECONDS, variables=variables) is None:
            return None
    tree = await ask_git(root, "write-tree", seconds=GIT_SECONDS, variables=variables)
    return None if tree is None else tree.decode().strip()


async def _variables_for(root: Path, folder: Path) -> Mapping[str, str]:
    """Return the variables that make git read the repository, and write only into our folder."""
    objects = (
        (await ask_git(root, "rev-parse", "--git-path", "objects") or b"").decode(errors="surrogateescape").strip()
    )
    (folder / "objects").mkdir(exist_ok=True)
    return {
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.path.join(root, objects),  # noqa: PTH118 - it may be absolute
    }


def _readable(text: bytes) -> str:
    return redact(text.decode(errors="replace"))
