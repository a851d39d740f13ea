"""Compare the code of two jobs: by their copies on a server, or by commits and recorded changes."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteToolError
from remote_tool.redaction import redact
from remote_tool.workflows.git_state import ask_git, excluding
from remote_tool.workflows.start.copies import diff_copies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

LARGEST = 4 * 1024 * 1024
SECONDS = 20.0
_BEGINNING = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_REMOVED = re.compile(rb"diff --git a/(.+) b/\1\ndeleted file mode ")
_DIFF = ("diff", "--relative", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")


@dataclass(frozen=True)
class CodeDiff:
    """The difference of the code of two jobs.

    Attributes:
        text: A unified diff; empty if the code is the same, or not known.
        source: What was compared: ``copies`` or ``commits``; empty if nothing could be.
        notes: What is not in the text, and why.
    """

    text: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()


async def diff_code(context: Context, one: Job, other: Job) -> CodeDiff:
    """Compare the code of two jobs."""
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
    beside = excluding((local.jobs_folder, local.logs_folder, *local.artifacts_in_project))
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
        more, words = await _scratch(root, Path(folder)), (*_DIFF, *trees, "--", ".", *beside)
        text = await ask_git(root, *words, most=LARGEST, seconds=SECONDS, more=more)
    if text is None:
        return CodeDiff(notes=(*notes, f"git does not have {one.git_commit[:12]} or {other.git_commit[:12]} here"))
    return CodeDiff(_readable(text), "commits", tuple(notes))


async def _make_tree(root: Path, commit: str, patch: bytes, folder: Path) -> str | None:
    """Return git's name of a commit with a patch, made beside the repository; None if the patch does not fit."""
    more = await _scratch(root, folder)
    prefix = (await ask_git(root, "rev-parse", "--show-prefix") or b"").decode(errors="surrogateescape").strip()
    sections = _BEGINNING.split(patch)
    removed = [found[1] for part in sections if (found := _REMOVED.match(part))]
    fitting = b"".join(part for part in sections if b"\n@@ " in part and not _REMOVED.match(part))
    file = folder / "patch"
    file.write_bytes(fitting)
    steps = [["read-tree", commit]]
    if fitting:
        directory = [f"--directory={prefix}"] if prefix else []
        steps.append(["apply", "--cached", "--whitespace=nowarn", *directory, str(file)])
    if removed:
        names = [name.decode(errors="surrogateescape") for name in removed]
        steps.append(["update-index", "--force-remove", "--", *names])
    for step in steps:
        if await ask_git(root, *step, seconds=SECONDS, more=more) is None:
            return None
    tree = await ask_git(root, "write-tree", seconds=SECONDS, more=more)
    return None if tree is None else tree.decode().strip()


async def _scratch(root: Path, folder: Path) -> Mapping[str, str]:
    """Return the variables with which git writes into a folder of ours, and reads the repository."""
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
