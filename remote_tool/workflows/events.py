"""The events that workflows report; the console shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from remote_tool.redaction import redact


class Outcome(StrEnum):
    """The outcome of a step."""

    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True)
class StepStarted:
    """A step has begun on a server."""

    server: str
    step: str


@dataclass(frozen=True)
class StepProgress:
    """A step makes progress; the text is a short line, such as the file being sent, or empty if it only runs."""

    server: str
    step: str
    text: str


@dataclass(frozen=True)
class StepOutput:
    """A step has printed bytes, which ``--show-output`` shows."""

    server: str
    step: str
    data: bytes


@dataclass(frozen=True)
class StepEnded:
    """A step has ended.

    Attributes:
        server: The server.
        step: The name of the step.
        outcome: The outcome.
        detail: A short description of the change, or the first line of the error.
        seconds: The duration.
        is_internal: Whether it is shown only if it failed.
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
    """A message for the user that is not a failure: about a new host key, or a skipped link.

    Attributes:
        server: The server that it is about, or empty.
        text: The message.
        is_over: Whether it reports the end of the state that an earlier notice reported.
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
