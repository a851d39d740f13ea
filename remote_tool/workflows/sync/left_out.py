"""Name the rule that leaves a file of the project out of a sync, for ``rsync --dry-run -v``."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.transport.sync.project.snapshot import explain
from remote_tool.workflows.git_state import explain_ignored
from remote_tool.workflows.sync.project import rules_and_ignored

if TYPE_CHECKING:
    from remote_tool.config.model import Config


class LeftOut(NamedTuple):
    """A file or folder that is not sent.

    Attributes:
        name: Relative to the project; that of a folder ends in a slash.
        rule: The pattern, and where it is, such as ``*.ckpt in .remote/exclude.txt``.
    """

    name: str
    rule: str


async def find_left_out(config: Config) -> list[LeftOut]:
    """Return the files and folders that a rule leaves out, but nothing of what is in such a folder.

    Raises:
        SyncError: The rsync here does not say this, or the project cannot be listed.
    """
    rules = await rules_and_ignored(config)
    hidden = await explain(config.local.root, rules)
    own, patterns = set(rules.own), set(replace(rules, ignored=()).users)
    by_git = await explain_ignored(config.local.root, rules.ignored) if rules.ignored else {}

    def source(name: bytes, rule: bytes) -> str:
        if rule in own:
            return "never sent"
        # What both leave out is left out by the pattern that comes first.
        git = "" if rule in patterns else by_git.get(name, "")
        return git or f"{os.fsdecode(rule)} in {config.local.exclude}"

    return sorted(LeftOut(os.fsdecode(name), source(name, rule)) for name, rule in hidden)
