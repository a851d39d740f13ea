"""The error of a request that a server refuses, and the reasons that the client knows by their text."""

from __future__ import annotations

NO_SUCH_JOB = "there is no such job on this server"


class RequestError(Exception):
    """The server cannot do what a request asks for; the text is for the user."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
