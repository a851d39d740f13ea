"""Artifact settings: which files of jobs to pull, with what limits, into which folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.readers import text_of
from remote_tool.errors import UsageError
from remote_tool.protocol.artifact_patterns import (
    MOST_PATTERNS,
    ArtifactPattern,
    PatternError,
    plain_glob,
    read_patterns,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from remote_tool.config.document import ConfigNode
    from remote_tool.config.keys import ProjectParts
    from remote_tool.paths import LocalPaths

PATTERN_KEYS = ("glob", "newest")
LIMIT_KEYS = ("file", "job")
# Folders that programs trust, where no file from a server may be placed.
_TRUSTED = {".git", ".ssh", ".gnupg"}


@dataclass(frozen=True)
class ArtifactLimit:
    """Limits on the bytes of artifacts that are pulled.

    Attributes:
        file: Of each file.
        job: Of all files of a job together.
    """

    file: int = 10 * 1024**3
    job: int = 50 * 1024**3


def read_artifact_patterns(place: ConfigNode, _project: ProjectParts) -> tuple[ArtifactPattern, ...]:
    items = place.items("a list of globs, such as [checkpoints/*.pt]")
    if len(items) > MOST_PATTERNS:
        place.refuse(f"too many globs: at most {MOST_PATTERNS} are allowed")
    return tuple(pattern for each in items if (pattern := _artifact(each)) is not None)


def _artifact(place: ConfigNode) -> ArtifactPattern | None:
    values = place.entries(PATTERN_KEYS) if place.is_mapping else {"glob": place}
    if "glob" not in values:
        place.refuse("requires glob, such as {glob: checkpoints/*.pt, newest: 2}")
    glob, newest = text_of(values, "glob", forms.ARTIFACT), text_of(values, "newest", forms.NEWEST)
    return ArtifactPattern(plain_glob(glob), int(newest) if newest else None) if glob else None


def read_artifact_limit(place: ConfigNode, _project: ProjectParts) -> ArtifactLimit:
    """Read the limit of each file, or also the limit of all files together, which is never smaller."""
    values = place.entries(LIMIT_KEYS) if place.is_mapping else {"file": place}
    usual = ArtifactLimit()
    file, job = (forms.read_size(text_of(values, key, forms.SIZE) or "") for key in LIMIT_KEYS)
    each = usual.file if file is None else file
    return ArtifactLimit(each, max(usual.job, each) if job is None else job)


def read_artifacts(requested: Iterable[str | ArtifactPattern]) -> tuple[ArtifactPattern, ...]:
    """Parse the patterns of a request.

    Raises:
        UsageError: A pattern is not a glob of files inside the project, or there are too many.
    """
    patterns = [ArtifactPattern(each) if isinstance(each, str) else each for each in requested]
    _refuse_too_many(patterns)
    for pattern in patterns:
        try:
            read_patterns([pattern])
        except PatternError as error:
            raise UsageError(
                f"--artifact {pattern.glob!r:.100}: must be {error}", hint="--artifact 'checkpoints/*.pt'"
            ) from None
    return tuple(ArtifactPattern(plain_glob(pattern.glob), pattern.newest) for pattern in patterns)


def wanted_artifacts(
    configured: Iterable[ArtifactPattern], requested: Iterable[str | ArtifactPattern]
) -> tuple[ArtifactPattern, ...]:
    """Return a job's patterns: the configured ones, and its own, which win for equal globs.

    Raises:
        UsageError: There are too many, or one is not a glob.
    """
    by_glob = {pattern.glob: pattern for pattern in (*configured, *read_artifacts(requested))}
    _refuse_too_many(by_glob)
    return tuple(by_glob.values())


def _refuse_too_many(globs: Collection[object]) -> None:
    if len(globs) > MOST_PATTERNS:
        raise UsageError(f"--artifact: a job can have at most {MOST_PATTERNS} globs, found {len(globs)}")


def problem_with_folder(folder: Path, local: LocalPaths) -> str:
    """Return why a folder cannot hold artifacts, as "it …"; empty when it can."""
    try:
        place, root, home = folder.resolve(), local.root.resolve(), Path.home().resolve()
        is_file = place.exists() and not place.is_dir()
    except (OSError, RuntimeError) as error:
        return f"cannot be used: {error}"
    if root.is_relative_to(place) or home.is_relative_to(place):
        return "is the project, your home folder, or a folder that contains one of them"
    if _TRUSTED & set(place.parts):
        return f"is inside {', '.join(sorted(_TRUSTED & set(place.parts)))}, whose files other programs trust"
    ours = [each.resolve() for each in (local.jobs, local.logs, local.fan_outs, local.sweeps)]
    if any(place.is_relative_to(each) or each.is_relative_to(place) for each in ours):
        return "contains remote-tool's own files"
    return "is not a folder" if is_file else ""


def read_folder(text: str | Path, local: LocalPaths) -> Path:
    """Return the folder of ``--to``, which is relative to the current one.

    Raises:
        UsageError: It would be sent with the project, or files from a server must not be there.
    """
    try:
        folder = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"--to {text}: {error}") from None
    if problem := problem_with_folder(folder, local):
        raise UsageError(f"--to {text} {problem}", hint="--to ~/models, or another folder outside the project")
    place = folder.resolve()
    kept = [local.remote_folder, *([local.artifacts_folder] if local.artifacts_folder else [])]
    if place.is_relative_to(local.root.resolve()) and not any(place.is_relative_to(each.resolve()) for each in kept):
        raise UsageError(
            f"--to {text} is inside the project, so the next sync would send it to the servers",
            hint=f"Choose another folder, or set artifacts_folder: {text} in .remote/configs.yaml, which is never sent",
        )
    return folder
