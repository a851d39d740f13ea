"""Copy a fan-out's pulled files into the project, so that the next sync sends them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, UsageError
from remote_tool.jobs.artifacts import ArtifactFolder
from remote_tool.workflows.events import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.context import Context


def gathering_folder(config: Config, folder: str, name: str = "") -> Path | None:
    """Return the target folder for a fan-out's files; None unless gathering.

    Raises:
        UsageError: It is outside the project, or one of our own folders.
    """
    if not folder:
        return None
    root = config.local.root.resolve()
    found = (root / folder).resolve()
    if found == root or not found.is_relative_to(root) or found.is_relative_to(config.local.remote_folder.resolve()):
        raise UsageError(f"--gather {folder} is not a folder inside {root}", hint="--gather data/self_play")
    return found / name


def gather(context: Context, jobs: Mapping[int, Job], folder: Path | None) -> tuple[Path, ...]:
    """Copy each shard's files into its own folder, with the server's relative paths; return them.

    Raises:
        JobError: They cannot be written; the message names the file and says why.
    """
    if folder is None:
        return ()
    placed: list[Path] = []
    for number, job in sorted(jobs.items()):
        artifacts = ArtifactFolder.at(context.config.local.artifacts(job.id))
        names = sorted(artifacts.sizes())
        placed += [_place(artifacts.path(name), folder / str(number) / name) for name in names]
        if not names:
            context.report(Notice(job.server, f"shard {number} (job {job.key}) wrote no file that matches --artifact"))
    return tuple(placed)


def _place(source: Path, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            # Pulled files are replaced, never modified, so a hard link is enough.
            os.link(source, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(source, target, follow_symlinks=False)
    except OSError as error:
        with suppress(OSError):
            target.unlink(missing_ok=True)
        raise JobError(f"Cannot write {target}: {error.strerror}", hint="df -h .") from error
    return target
