"""The code of a job that is started again: the copy that it ran in, or the current code and how it differs."""

from __future__ import annotations

import asyncio
import shlex
from collections import defaultdict
from typing import TYPE_CHECKING

from remote_tool.errors import RemoteToolError
from remote_tool.launchers.job_request import KeptCode
from remote_tool.workflows.events import Notice
from remote_tool.workflows.git_state import GitState, changed_since, while_asking_git
from remote_tool.workflows.start.copies import ask_for_copies, changed_since_copy
from remote_tool.workflows.start.send import never_sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context

# Seconds to wait for each answer of git.
GIT_SECONDS = 10.0
SHOWN_FILES = 5
SHORT_COMMIT = 7


async def find_kept_code(context: Context, nodes: Sequence[Job], servers: Sequence[str]) -> KeptCode | None:
    """Return the copies of the code that a job or the nodes of a launch ran in; None to run the current code.

    Raises:
        SomeServersFailedError: Servers could not be asked.
    """
    job = nodes[0]
    if not all(node.copy for node in nodes):
        return None
    copies = {node.server: node.copy for node in nodes}
    if not set(servers) <= copies.keys():
        context.report(Notice("", f"job {job.key}: the copy of its code is on {', '.join(copies)} only"))
        return None
    found = await ask_for_copies(context, {server: copies[server] for server in servers})
    found.raise_if_any_failed()
    gone = [server for server, is_kept in found.values.items() if not is_kept]
    if gone:
        context.report(Notice("", f"job {job.key}: the copy of its code is gone from {', '.join(gone)}"))
        return None
    return KeptCode({server: copies[server] for server in servers}, job.git_commit, job.git_branch, job.git_dirty)


async def report_kept_code(context: Context, jobs: Sequence[Job]) -> None:
    """Say that jobs run in the copies of their code, and how that differs from the current code."""
    for job in jobs:
        try:
            files = await changed_since_copy(context, job.server, job.copy)
        except RemoteToolError as error:
            how = f"and how it differs from the current code is not known: {error}"
        else:
            how = f"not the current code: {differing(files)}" if files else "which is the same as the current code"
        text = f"job {job.key}: running the kept code (copy {job.copy}), {how}"
        context.report(Notice("", text + ("" if how.startswith("which") else "; --current-code runs the current one")))


async def report_code(context: Context, jobs: Sequence[Job]) -> None:
    """Say how the project differs from the code that jobs ran; nothing if it is the same commit, and clean."""
    local = context.config.local
    beside = never_sent(local)
    _, now = await while_asking_git(local.root, asyncio.sleep(0), beside, GIT_SECONDS)
    ran: dict[GitState, list[str]] = defaultdict(list)
    for job in jobs:
        ran[GitState(job.git_commit, job.git_branch, job.git_dirty)].append(str(job.key))
    for then, keys in ran.items():
        who = f"job{'s' if len(keys) > 1 else ''} {', '.join(keys)}"
        if now is None or not then.commit:
            what = "the project" if now is None else "the record"
            context.report(Notice("", f"{who}: running the current code; {what} has no git commit to compare"))
        elif then.commit != now.commit or then.dirty or now.dirty:
            files = await changed_since(local.root, then.commit, beside, GIT_SECONDS)
            text = f"{who} ran {_named(then)}; now running {_named(now)}"
            context.report(Notice("", f"{text}: {_listed(files, then)}{_kept_of(jobs, keys)}"))


def _kept_of(jobs: Sequence[Job], keys: Sequence[str]) -> str:
    has_copy = any(job.copy for job in jobs if str(job.key) in keys)
    return "; --kept-code runs the copy, if it is kept" if has_copy else "; --kept-code is for jobs with --frozen"


def differing(files: Sequence[str]) -> str:
    """Return which files differ, the first few by name."""
    more = f" and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
    return f"{', '.join(shlex.quote(file) for file in files[:SHOWN_FILES])}{more} differ{'s' * (len(files) == 1)}"


def _named(git: GitState) -> str:
    branch = f" of {git.branch}" if git.branch else ""
    return f"commit {git.commit[:SHORT_COMMIT]}{branch}" + (" with uncommitted changes" if git.dirty else "")


def _listed(files: Sequence[str] | None, then: GitState) -> str:
    if files is None:
        return f"git does not say which files differ from {then.commit[:SHORT_COMMIT]}"
    if not files:
        return "no tracked file differs between that commit and now"
    return f"{differing(files)} from that commit"
