"""Patterns of artifacts to pull: globs relative to the project, shared by the client and the server."""

from __future__ import annotations

from remote_tool.protocol.marks import JOB_MARKER
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

MOST_PATTERNS = 100
MOST_NEWEST = 1000
_LONGEST = 1024


class ArtifactPattern(NamedTuple):
    """A pattern for files that a job writes.

    Attributes:
        glob: ``*``, ``?`` and ``[...]`` stay within a folder, ``**`` is any folders. One that ends with a slash matches
            whole folders.
        newest: How many of the newest to pull; None: all.
    """

    glob: str
    newest: Optional[int] = None


class PatternError(ValueError):
    """A pattern is invalid; the message completes "must be"."""


def is_glob(text: object) -> bool:
    """Return whether this can match files inside a project."""
    if not isinstance(text, str) or len(text) > _LONGEST or not text.isprintable():
        return False
    parts = text.split("/")
    return not text.startswith(("/", "~")) and ".." not in parts and any(part not in {"", "."} for part in parts)


def plain_glob(text: str) -> str:
    """Return a glob in its shortest form: ``./a//b`` is ``a/b``; a slash at its end is kept."""
    end = "/" if text.endswith("/") else ""
    return "/".join(part for part in text.split("/") if part not in {"", "."}) + end


def read_patterns(value: object) -> Tuple[ArtifactPattern, ...]:
    """Return the patterns in a record, a list of ``[glob, newest]``.

    Raises:
        PatternError: The value is invalid.
    """
    if not isinstance(value, (list, tuple)) or len(value) > MOST_PATTERNS:
        raise PatternError(f"a list of at most {MOST_PATTERNS} patterns")
    return tuple(_read_pattern(each) for each in value)


def are_patterns(value: object) -> bool:
    """Return whether a record's value is a list of patterns."""
    try:
        read_patterns(value)
    except PatternError:
        return False
    return True


def of_job(patterns: Tuple[ArtifactPattern, ...], job_id: str) -> Tuple[ArtifactPattern, ...]:
    """Replace ``$REMOTE_TOOL_JOB_ID`` in patterns with the job's id, as its own shell would."""
    return tuple(pattern._replace(glob=_fill_in(pattern.glob, job_id)) for pattern in patterns)


def _fill_in(glob: str, job_id: str) -> str:
    return glob.replace(f"${{{JOB_MARKER}}}", job_id).replace(f"${JOB_MARKER}", job_id)


def as_record(patterns: Tuple[ArtifactPattern, ...]) -> List[List[object]]:
    """Return patterns as stored in records."""
    return [list(pattern) for pattern in patterns]


def _read_pattern(value: object) -> ArtifactPattern:
    if not isinstance(value, (list, tuple)) or len(value) != 2:  # noqa: PLR2004 - a glob and a number
        raise PatternError("a glob and a number")
    glob, newest = value
    if not is_glob(glob):
        raise PatternError("a glob inside the project")
    if newest is not None and not _is_number(newest):
        raise PatternError(f"a whole number from 1 to {MOST_NEWEST}")
    return ArtifactPattern(plain_glob(glob), newest)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_NEWEST
