"""Which files that jobs write come home: what is asked for a job, and what the configuration says for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.errors import UsageError
from remote_tool.supervisor.artifact_patterns import (
    MOST_PATTERNS,
    ArtifactPattern,
    PatternError,
    plain_glob,
    read_patterns,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remote_tool.config.model import Config


def read_artifacts(wanted: Iterable[str | ArtifactPattern]) -> tuple[ArtifactPattern, ...]:
    """Read what a request names.

    Raises:
        UsageError: Something is no glob of files inside the project.
    """
    patterns = [ArtifactPattern(each) if isinstance(each, str) else each for each in wanted]
    for pattern in patterns:
        try:
            read_patterns([pattern])
        except PatternError as error:
            raise UsageError(
                f"--artifact {pattern.glob!r:.100}: must be {error}", hint="--artifact 'checkpoints/*.pt'"
            ) from None
    return tuple(ArtifactPattern(plain_glob(pattern.glob), pattern.newest) for pattern in patterns)


def wanted_artifacts(config: Config, wanted: Iterable[str | ArtifactPattern]) -> tuple[ArtifactPattern, ...]:
    """Return the patterns of a job: those of the configuration, and its own; of one glob twice, its own.

    Raises:
        UsageError: There are too many, or something is no glob.
    """
    by_glob = {pattern.glob: pattern for pattern in (*config.artifacts, *read_artifacts(wanted))}
    if len(by_glob) > MOST_PATTERNS:
        raise UsageError(f"{len(by_glob)} globs of artifacts; at most {MOST_PATTERNS} are possible")
    return tuple(by_glob.values())
