"""Which commit of the project is sent: git here is asked, while the servers are."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from remote_tool.protocol.limits import LONGEST_BRANCH
from remote_tool.system.programs import Question, ask_program

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import JobSpec

T = TypeVar("T")
# A start waits no longer than that for git, after the sync; what is not known then is left out.
SECONDS = 0.5
# A sync that takes as long is rare.
LONGEST_ANSWER = 600.0
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_BRANCHES = "refs/heads/"
# Nothing is run that a repository names, nothing is written into it, and nothing fetched or asked for.
_OPTIONS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
# A hook of git sets these for its own repository.
_OF_HOOKS = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}


@dataclass(frozen=True)
class GitState:
    """Where a project stands.

    Attributes:
        commit: In hexadecimal digits.
        branch: Empty when none is checked out.
        dirty: Whether the project has changes that are not committed, or new files; None when that is not known.
    """

    commit: str
    branch: str = ""
    dirty: bool | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What a job is told, as far as it is known."""
        found = {"REMOTE_TOOL_GIT_COMMIT": self.commit}
        if self.branch:
            found["REMOTE_TOOL_GIT_BRANCH"] = self.branch
        if self.dirty is not None:
            found["REMOTE_TOOL_GIT_DIRTY"] = str(int(self.dirty))
        return found


def with_git(spec: JobSpec, git: GitState | None) -> JobSpec:
    """Return a job that says which commit it runs; a variable that the user sets counts more."""
    if git is None:
        return spec
    environment = {**git.variables, **spec.environment}
    return replace(spec, environment=environment, git_commit=git.commit, git_branch=git.branch, git_dirty=git.dirty)


async def while_asking_git(root: Path, work: Awaitable[T], beside: Sequence[str] = ()) -> tuple[T, GitState | None]:
    """Do some work, and return its result with where the project stands; None without git, or a commit.

    Args:
        root: Of the project.
        work: What else is done.
        beside: Folders in it that are never sent, and so make it no other project.
    """
    if not _is_in_repository(root):
        return await work, None
    head = asyncio.create_task(_read_head(root))
    changes = asyncio.create_task(_has_changes(root, beside))
    try:
        result = await work
        await asyncio.wait([head, changes], timeout=SECONDS)
        found = head.result() if head.done() else None
        return result, replace(found, dirty=changes.result() if changes.done() else None) if found else None
    finally:
        for task in (head, changes):
            task.cancel()
        await asyncio.gather(head, changes, return_exceptions=True)


def _is_in_repository(root: Path) -> bool:
    """Whether it is worth a process to ask."""
    try:
        return any((folder / ".git").exists() for folder in (root, *root.parents))
    except PermissionError:
        return False


async def _read_head(root: Path) -> GitState | None:
    answer = await _ask(root, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD") or b""
    commit, name = (*answer.decode(errors="replace").split("\n"), "")[:2]
    if not _COMMIT.fullmatch(commit):
        return None
    return GitState(commit, name.removeprefix(_BRANCHES)[:LONGEST_BRANCH] if name.startswith(_BRANCHES) else "")


async def _has_changes(root: Path, beside: Sequence[str]) -> bool | None:
    """Whether git names a file of the project; it has said enough with the first letter."""
    what = ("--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--", ".")
    others = (f":(exclude,literal){folder}" for folder in (".remote", *beside))
    answer = await _ask(root, "status", *what, *others, most=1)
    return None if answer is None else bool(answer)


async def _ask(root: Path, *words: str, most: int = 16 * 1024) -> bytes | None:
    """Return the first bytes that git prints; None when it is not there, or fails."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    question = Question(LONGEST_ANSWER, {**own, **_QUIET}, most=most)
    try:
        answer = await ask_program(question, "git", "-C", str(root), *_OPTIONS, *words)
    except OSError:  # a timeout is one
        return None
    return answer.output if answer.status == 0 else None
