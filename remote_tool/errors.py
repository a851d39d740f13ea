"""The errors of this package.

    RemoteToolError
      ConfigError                 configs.yaml or exclude.txt is wrong
      UsageError                  the request is wrong: unknown server, unknown job, no workspace
      ConnectError                no connection to a server
        HostKeyError              its host key is unknown or has changed
        LoginError                it refused us
        ConnectionLostError       the link went while we used it
      RemoteCommandError          a command of ours failed on a server
      SyncError                   rsync did not finish
      EnvironmentSetupError       Python or packages could not be installed
      JobError                    a job could not be started, read or stopped
      SomeServersFailedError      several servers, and not all did it

An error is a record: its text is made from its fields and never parsed back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


class RemoteToolError(Exception):
    """What went wrong, and the next thing to type.

    Attributes:
        message: One sentence with the value that is wrong.
        hint: What to do about it, often a command; may be empty.
        server: The server it happened on; empty when it is of no server.
    """

    program_exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", server: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.server = server

    def __str__(self) -> str:
        return self.message


class ConfigError(RemoteToolError):
    """The configuration is wrong.

    Attributes:
        problems: Every problem found, each ``file:line: key: what``.
    """

    program_exit_code = 2

    def __init__(self, problems: list[str] | str, *, hint: str = "") -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems), hint=hint)


class UsageError(RemoteToolError):
    """The request cannot be meant: an unknown name, an ambiguous selection, no workspace."""

    program_exit_code = 2


class ConnectError(RemoteToolError):
    """No connection to a server could be made."""

    program_exit_code = 4


class HostKeyError(ConnectError):
    """The server's host key is not the one that we know, or not known at all."""


class LoginError(ConnectError):
    """The server refused to log us in."""


class ConnectionLostError(ConnectError):
    """The connection went while it was in use; what the server did since is not known."""


class RemoteCommandError(RemoteToolError):
    """A command of ours failed on a server.

    Attributes:
        command: What was run, without secrets.
        exit_status: Its exit status; 128+N when signal N ended it.
        stderr_tail: The end of what it said.
    """

    def __init__(
        self, message: str, *, server: str, command: str, exit_status: int, stderr_tail: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint, server=server)
        self.command = command
        self.exit_status = exit_status
        self.stderr_tail = stderr_tail


class SyncError(RemoteToolError):
    """The project did not get to the server whole."""


class EnvironmentSetupError(RemoteToolError):
    """Python or the packages could not be installed on a server."""


class JobError(RemoteToolError):
    """A job could not be started, read or stopped."""


class SomeServersFailedError(RemoteToolError):
    """Several servers were asked, and at least one of them failed.

    Attributes:
        failures: The error of each server that failed.
        succeeded: The servers that did it.
    """

    def __init__(self, failures: Mapping[str, RemoteToolError], succeeded: list[str]) -> None:
        names = ", ".join(failures)
        super().__init__(f"{len(failures)} of {len(failures) + len(succeeded)} servers failed: {names}")
        self.failures = dict(failures)
        self.succeeded = succeeded

    @property
    def exit_code(self) -> int:
        """3 when some did it, else what the failures have in common."""
        if self.succeeded:
            return 3
        codes = {error.program_exit_code for error in self.failures.values()}
        return codes.pop() if len(codes) == 1 else 1
