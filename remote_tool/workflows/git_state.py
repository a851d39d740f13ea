"""Ask the local git about the project: its commit, changed files, and the uncommitted changes as a patch.

With the commit and the patch, the code of a job can be made again.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from remote_tool.protocol.limits import LONGEST_BRANCH
from remote_tool.redaction import redact
from remote_tool.system.programs import run_program
from remote_tool.transport.sync.secrets import holds_private_key, secret_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import JobSpec

T = TypeVar("T")
# Seconds that a start waits for git after the sync; without an answer the commit is left out.
SECONDS = 0.5
# A sync rarely takes this long.
LONGEST_ANSWER = 600.0
# Seconds for each request of a patch; without an answer, it is left out.
PATCH_SECONDS = 5.0
LARGEST_PATCH = 1024 * 1024
LARGEST_LIST = 4 * 1024 * 1024
MOST_NAMES = 1000
# Independent of the settings of the repository and the user.
DIFF_OPTIONS = ("--relative", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
# Begins the part of each file in a patch.
FILE_START = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_CHANGES = ("diff", "HEAD", *DIFF_OPTIONS, "--src-prefix=a/", "--dst-prefix=b/")
# git quotes other names.
_PLAIN_NAME = re.compile(rb"[A-Za-z0-9._/@+=-][A-Za-z0-9._/@+= -]*")
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
        commit: The hash of the commit, in hexadecimal digits.
        branch: The branch; empty if none is checked out.
        dirty: Whether there are uncommitted changes or new files; None if unknown.
        changes: The uncommitted changes of sent files, if they are to be recorded.
    """

    commit: str
    branch: str = ""
    dirty: bool | None = None
    changes: bytes = field(default=b"", repr=False)

    @property
    def variables(self) -> dict[str, str]:
        """The variables for jobs, as far as known."""
        found = {"REMOTE_TOOL_GIT_COMMIT": self.commit}
        if self.branch:
            found["REMOTE_TOOL_GIT_BRANCH"] = self.branch
        if self.dirty is not None:
            found["REMOTE_TOOL_GIT_DIRTY"] = str(int(self.dirty))
        return found


def with_git(spec: JobSpec, git: GitState | None) -> JobSpec:
    """Return a job with the git state in its variables; a variable that the user has set stays."""
    if git is None:
        return spec
    environment = {**git.variables, **spec.environment}
    changes = git.changes if spec.copy else b""
    spec = replace(spec, environment=environment, changes=changes)
    return replace(spec, git_commit=git.commit, git_branch=git.branch, git_dirty=git.dirty)


async def while_asking_git(
    root: Path, work: Awaitable[T], unsent: Sequence[str] = (), seconds: float | None = None
) -> tuple[T, GitState | None]:
    """Ask git while other work is done; return the result of the work, and the git state if there is a commit.

    Args:
        root: The project's folder.
        work: The other work.
        unsent: Folders that are never sent, and do not make the project dirty.
        seconds: The time to wait for git after the work; None: that of a start.
    """
    if not _is_in_repository(root):
        return await work, None
    head = asyncio.create_task(_read_head(root))
    changes = asyncio.create_task(_has_changes(root, unsent))
    try:
        result = await work
        await asyncio.wait([head, changes], timeout=SECONDS if seconds is None else seconds)
        found = head.result() if head.done() else None
        return result, replace(found, dirty=changes.result() if changes.done() else None) if found else None
    finally:
        for task in (head, changes):
            task.cancel()
        await asyncio.gather(head, changes, return_exceptions=True)


async def changed_since(root: Path, commit: str, unsent: Sequence[str], seconds: float) -> tuple[str, ...] | None:
    """Return the tracked files that have changed since a commit; None if git fails, or does not have the commit.

    A very long list is cut off.
    """
    if not _COMMIT.fullmatch(commit) or not _is_in_repository(root):
        return None
    words = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--relative", commit, "--", ".")
    answer = await ask_git(root, "diff", *words, *excluding(unsent), seconds=seconds)
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


async def _has_changes(root: Path, unsent: Sequence[str]) -> bool | None:
    """Return whether git reports a changed file; one byte of its answer is enough."""
    words = ("--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--", ".")
    answer = await ask_git(root, "status", *words, *excluding(unsent), most=1)
    return None if answer is None else bool(answer)


def excluding(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a git command that exclude ``.remote`` and folders."""
    return tuple(f":(exclude,literal){folder}" for folder in (".remote", *folders))


async def ask_git(
    root: Path,
    *words: str,
    most: int | None = 16 * 1024,
    seconds: float = LONGEST_ANSWER,
    variables: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> bytes | None:
    """Return the first bytes of git's output; None if git is missing or fails.

    Args:
        root: The project's folder.
        words: The arguments of git.
        most: The number of bytes; None: all.
        seconds: The timeout.
        variables: Environment variables to add.
        stdin: Its input, if all of the output is asked for.
    """
    own = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    env = {**own, **_QUIET, **(variables or {})}
    try:
        answer = await run_program(
            *("git", "-C", str(root), *_OPTIONS, *words), seconds=seconds, env=env, stdin=stdin, max_output=most
        )
    except OSError:  # Also after the timeout.
        return None
    return answer.output if answer.status == 0 else None


async def list_ignored(root: Path) -> list[bytes] | None:
    """Return the files and folders that git ignores, outermost first, relative to the project; None if unknown.

    A file that git tracks is not among them, whatever the patterns say. Names of folders end in a slash.
    """
    words = ("--others", "--ignored", "--exclude-standard", "--directory", "-z", "--", ".")
    answer = await ask_git(root, "ls-files", *words, most=LARGEST_LIST)
    return None if answer is None or len(answer) >= LARGEST_LIST else answer.split(b"\0")[:-1]


async def explain_ignored(root: Path, names: Sequence[bytes]) -> dict[bytes, str]:
    """Return the pattern that makes git ignore each of these files, with its place, such as ``*.log in .gitignore``."""
    answer = await ask_git(root, "check-ignore", "-v", "-z", "--stdin", stdin=b"\0".join(names), most=None)
    fields = (answer or b"").split(b"\0")
    found = zip(fields[0::4], fields[2::4], fields[3::4], strict=False)
    return {name: f"{os.fsdecode(pattern)} in {os.fsdecode(file)}" for file, pattern, name in found}


async def read_changes(root: Path, sent_among: Callable[[Collection[bytes]], set[bytes]]) -> bytes:
    """Return the patch from the commit to the sent files: changed, new and removed ones; empty if unknown.

    It leaves out files that are never sent, and those with a private key; it only names removed files. Values of
    secret variables are hidden.

    Args:
        root: The project's folder.
        sent_among: Returns the names that were sent, of those that it is given.
    """
    changed = await _list_names(root, *_CHANGES, "--name-only", "--diff-filter=d", "-z")
    removed = await _list_names(root, *_CHANGES, "--name-only", "--diff-filter=D", "-z")
    new = await _list_names(root, "ls-files", "--others", "--exclude-standard", "-z")
    sent = sent_among([*changed, *new])
    in_patch = [name for name in changed if name in sent]
    in_patch += [name for name in removed if secret_in(name) is None]
    parts = [part async for part in _file_patches(root, in_patch[:MOST_NAMES])]
    parts += [_new_file_patch(root, name) for name in new if name in sent][:MOST_NAMES]
    patch = b"".join(part for part in parts if not _holds_key(part))
    return _cut_off(redact(patch.decode(errors="surrogateescape")).encode(errors="surrogateescape"))


async def _list_names(root: Path, *words: str) -> list[bytes]:
    answer = await ask_git(root, *words, most=LARGEST_LIST, seconds=PATCH_SECONDS)
    return [name for name in (answer or b"").split(b"\0")[:-1] if name]


async def _file_patches(root: Path, names: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Yield the patch of each file; that of a removed file does not have its content."""
    if names:
        literal = [f":(literal){name.decode(errors='surrogateescape')}" for name in names]
        answer = await ask_git(
            root, *_CHANGES, "--irreversible-delete", "--", *literal, most=2 * LARGEST_PATCH, seconds=PATCH_SECONDS
        )
        for part in FILE_START.split(answer or b""):
            yield part


def _new_file_patch(root: Path, name: bytes) -> bytes:
    """Return the patch that creates a file; only its name if it is binary or large, or cannot be read."""
    path = root / name.decode(errors="surrogateescape")
    begin = b"diff --git a/%b b/%b\nnew file mode %o\n" % (name, name, 0o100644)
    try:
        is_plain = path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_PATCH
        data = path.read_bytes() if is_plain and _PLAIN_NAME.fullmatch(name) else b"\0"
    except OSError:
        return b""
    if b"\0" in data:
        return begin + b"Binary files /dev/null and b/%b differ\n" % name
    lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
    if not lines:
        return begin
    end = b"" if data.endswith(b"\n") else b"\n\\ No newline at end of file\n"
    head = b"--- /dev/null\n+++ b/%b\n@@ -0,0 +1,%d @@\n" % (name, len(lines))
    return begin + head + b"".join(b"+" + line for line in lines) + end


def _holds_key(part: bytes) -> bool:
    return holds_private_key(re.sub(rb"^[ +-]", b"", part, flags=re.MULTILINE))


def _cut_off(patch: bytes) -> bytes:
    if len(patch) <= LARGEST_PATCH:
        return patch
    return (
        patch[: patch.rindex(b"\n", 0, LARGEST_PATCH) + 1]
        + b"# remote-tool: the patch is longer; the rest was left out\n"
    )
