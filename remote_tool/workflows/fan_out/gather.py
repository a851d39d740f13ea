"""Putting what came home of a fan-out into the project, from where it is sent with the next sync."""

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
    """Return where the files of a fan-out go; None when they are not gathered.

    Raises:
        UsageError: It is not in the project, or is ours.
    """
    if not folder:
        return None
    root = config.local.root.resolve()
    found = (root / folder).resolve()
    if found == root or not found.is_relative_to(root) or found.is_relative_to(config.local.remote_folder.resolve()):
        raise UsageError(f"--gather {folder} is not a folder inside {root}", hint="--gather data/self_play")
    return found / name


def gather(context: Context, jobs: Mapping[int, Job], folder: Path | None) -> tuple[Path, ...]:
    """Put the files of each shard into a folder of its own, as they lay in the project on the server; return them.

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
            # What came home is replaced and never changed, so it need not be there twice.
            os.link(source, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(source, target, follow_symlinks=False)
    except OSError as error:
        with suppress(OSError):
            target.unlink(missing_ok=True)
        raise JobError(f"Cannot write {target}: {error.strerror}", hint="df -h .") from error
    return target
