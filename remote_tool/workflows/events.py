"""Progress events of workflows; the console shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from remote_tool.redaction import redact


class Outcome(StrEnum):
    """How a step ended."""

    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True)
class StepStarted:
    """A step began on a server."""

    server: str
    step: str


@dataclass(frozen=True)
class StepProgress:
    """Progress of a step; text is a short line, such as the file being sent, or empty while it only runs."""

    server: str
    step: str
    text: str


@dataclass(frozen=True)
class StepOutput:
    """Output of a step, for ``--show-output``; bytes as they came."""

    server: str
    step: str
    data: bytes


@dataclass(frozen=True)
class StepEnded:
    """A step ended; detail is what changed, or the error's first line.

    Attributes:
        is_internal: It is shown only if it failed.
    """

    server: str
    step: str
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    is_internal: bool = False

    def __post_init__(self) -> None:
        """Redact secrets in the server's text."""
        object.__setattr__(self, "detail", redact(self.detail))


@dataclass(frozen=True)
class Notice:
    """Something the user should know that is not a failure: a new host key, a skipped link.

    Attributes:
        server: Whom it is about; may be empty.
        text: What.
        is_over: Whether it says that what an earlier one reported is over.
    """

    server: str
    text: str
    is_over: bool = False

    def __post_init__(self) -> None:
        """Redact secrets in the server's text."""
        object.__setattr__(self, "text", redact(self.text))


Event = StepStarted | StepProgress | StepOutput | StepEnded | Notice
Report = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Report nothing."""
