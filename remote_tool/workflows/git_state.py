"""Find the commit of the project that is sent: git runs locally while the servers are being asked."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from remote_tool.protocol.limits import LONGEST_BRANCH
from remote_tool.system.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import JobSpec

T = TypeVar("T")
# Seconds that a start waits for git after the sync; without an answer the commit is left out.
SECONDS = 0.5
# A sync rarely takes this long.
LONGEST_ANSWER = 600.0
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_BRANCHES = "refs/heads/"
# Run no program configured in the repository, write nothing into it, fetch nothing and prompt for nothing.
_OPTIONS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
# A hook of git sets these for its own repository.
_OF_HOOKS = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}


@dataclass(frozen=True)
class GitState:
    """The git state of a project.

    Attributes:
        commit: In hexadecimal digits.
        branch: Empty when none is checked out.
        dirty: Whether there are uncommitted changes or new files; None if unknown.
        changes: The uncommitted changes of sent files, if they are to be recorded.
    """

    commit: str
    branch: str = ""
    dirty: bool | None = None
    changes: bytes = field(default=b"", repr=False)

    @property
    def variables(self) -> dict[str, str]:
        """Return a job's variables, as far as known."""
        found = {"REMOTE_TOOL_GIT_COMMIT": self.commit}
        if self.branch:
            found["REMOTE_TOOL_GIT_BRANCH"] = self.branch
        if self.dirty is not None:
            found["REMOTE_TOOL_GIT_DIRTY"] = str(int(self.dirty))
        return found


def with_git(spec: JobSpec, git: GitState | None) -> JobSpec:
    """Return a job with the commit in its variables; a variable that the user sets wins."""
    if git is None:
        return spec
    environment = {**git.variables, **spec.environment}
    changes = git.changes if spec.copy else b""
    spec = replace(spec, environment=environment, changes=changes)
    return replace(spec, git_commit=git.commit, git_branch=git.branch, git_dirty=git.dirty)


async def while_asking_git(
    root: Path, work: Awaitable[T], beside: Sequence[str] = (), seconds: float | None = None
) -> tuple[T, GitState | None]:
    """Run some work while asking git; return its result with the project's git state; None without git or a commit.

    Args:
        root: The project's folder.
        work: The other work.
        beside: Folders that are never sent, and do not make the project dirty.
        seconds: To wait for git after the work; None: as a start does.
    """
    if not _is_in_repository(root):
        return await work, None
    head = asyncio.create_task(_read_head(root))
    changes = asyncio.create_task(_has_changes(root, beside))
    try:
        result = await work
        await asyncio.wait([head, changes], timeout=SECONDS if seconds is None else seconds)
        found = head.result() if head.done() else None
        return result, replace(found, dirty=changes.result() if changes.done() else None) if found else None
    finally:
        for task in (head, changes):
            task.cancel()
        await asyncio.gather(head, changes, return_exceptions=True)


async def changed_since(root: Path, commit: str, beside: Sequence[str], seconds: float) -> tuple[str, ...] | None:
    """Return the tracked files that differ between a commit and now; None if git does not say, or has no such commit.

    Very many names are cut off.
    """
    if not _COMMIT.fullmatch(commit) or not _is_in_repository(root):
        return None
    what = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--relative", commit, "--", ".")
    answer = await ask_git(root, "diff", *what, *excluding(beside), seconds=seconds)
    return None if answer is None else tuple(answer.decode(errors="replace").split("\0")[:-1])


def _is_in_repository(root: Path) -> bool:
    """Return whether the project is in a repository, without starting git."""
    try:
        return any((folder / ".git").exists() for folder in (root, *root.parents))
    except PermissionError:
        return False


async def _read_head(root: Path) -> GitState | None:
    answer = await ask_git(root, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD") or b""
    commit, name = (*answer.decode(errors="replace").split("\n"), "")[:2]
    if not _COMMIT.fullmatch(commit):
        return None
    return GitState(commit, name.removeprefix(_BRANCHES)[:LONGEST_BRANCH] if name.startswith(_BRANCHES) else "")


async def _has_changes(root: Path, beside: Sequence[str]) -> bool | None:
    """Return whether git reports a changed file; the first byte is enough."""
    what = ("--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--", ".")
    answer = await ask_git(root, "status", *what, *excluding(beside), most=1)
    return None if answer is None else bool(answer)


def excluding(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the words that keep ``.remote`` and folders out of git's answer."""
    return tuple(f":(exclude,literal){folder}" for folder in (".remote", *folders))


async def ask_git(
    root: Path,
    *words: str,
    most: int = 16 * 1024,
    seconds: float = LONGEST_ANSWER,
    more: Mapping[str, str] | None = None,
) -> bytes | None:
    """Return the first bytes of git's output, with more variables; None if it is missing or fails."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    env = {**own, **_QUIET, **(more or {})}
    try:
        answer = await run_program("git", "-C", str(root), *_OPTIONS, *words, seconds=seconds, env=env, max_output=most)
    except OSError:  # a timeout is one
        return None
    return answer.output if answer.status == 0 else None
