"""The error of a refused request, and the reasons that the client recognizes by their text."""

from __future__ import annotations

NO_SUCH_JOB = "there is no such job on this server"


class RequestError(Exception):
    """The server cannot fulfill a request; the message is for the user."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
