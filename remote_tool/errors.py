"""The errors of this package.

    RemoteToolError
      ConfigError                 configs.yaml or exclude.txt is invalid
      UsageError                  the request is invalid: unknown server, unknown job, no workspace
      ConnectError                a server cannot be reached
        HostKeyError              its host key is unknown or has changed
        LoginError                it rejected the login
          LoginShellError         its login shell consumed the request, and nothing was run
        ConnectionLostError       the connection was lost while it was in use
      RemoteCommandError          a command that remote-tool ran on a server failed
      SyncError                   rsync did not finish
        AnotherWorkspaceError     the folder on the server belongs to another workspace
      EnvironmentSetupError       Python or packages could not be installed
      JobError                    a job could not be started, read or stopped
      SomeServersFailedError      at least one of several servers failed

An error is a record: its text is made from its fields and never parsed back. No field shows a value that
:mod:`remote_tool.redaction` hides.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, ClassVar

from remote_tool.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

# macOS allows 10,240.
MOST_FILES = 8192


class RemoteToolError(Exception):
    """An error with a hint for the user; the base class of all errors of this package.

    Attributes:
        message: One sentence that includes the invalid value.
        hint: How to fix it, often a command; may be empty.
        server: The server where it happened; empty if it concerns no server.
    """

    program_exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", server: str = "") -> None:
        self.message = redact(message)
        super().__init__(self.message)
        self._hint = redact(hint)
        self.server = server

    @property
    def hint(self) -> str:
        """How to fix it; for too many open files, always the same command."""
        return f"ulimit -n {MOST_FILES}" if _ran_out_of_files(self) else self._hint

    @hint.setter
    def hint(self, text: str) -> None:
        self._hint = redact(text)

    def __str__(self) -> str:
        return self.message


def _ran_out_of_files(error: BaseException | None) -> bool:
    """Return whether too many open files caused an error."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class ConfigError(RemoteToolError):
    """The configuration is invalid.

    Attributes:
        problems: All problems, each as ``file:line: key: description``.
    """

    program_exit_code = 2

    def __init__(self, problems: list[str] | str, *, hint: str = "") -> None:
        self.problems = [redact(problem) for problem in ([problems] if isinstance(problems, str) else problems)]
        super().__init__("\n".join(self.problems), hint=hint)


class UsageError(RemoteToolError):
    """The request is invalid: an unknown name, an ambiguous selection, no workspace."""

    program_exit_code = 2


class ConnectError(RemoteToolError):
    """A server cannot be reached."""

    program_exit_code = 4


class HostKeyError(ConnectError):
    """The host key of the server is unknown, or differs from the known one."""


class LoginError(ConnectError):
    """The server rejected the login."""


class LoginShellError(LoginError):
    """The login shell of the server consumed the request; nothing was run."""

    program_exit_code = 1


class ConnectionLostError(ConnectError):
    """The connection was lost while it was in use; whether the server finished the request is unknown."""


class RemoteCommandError(RemoteToolError):
    """A command that remote-tool ran on a server failed.

    Attributes:
        command: The command, without secrets.
        exit_status: Its exit status; 128+N if signal N ended it.
        stderr_tail: The end of its stderr.
    """

    def __init__(
        self, message: str, *, server: str, command: str, exit_status: int, stderr_tail: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint, server=server)
        self.command = redact(command)
        self.exit_status = exit_status
        self.stderr_tail = redact(stderr_tail)


class SyncError(RemoteToolError):
    """The project could not be copied to the server completely."""


class AnotherWorkspaceError(SyncError):
    """Only other workspaces have sent the project's folder on a server.

    Attributes:
        question: Whether to share it, for a terminal.
    """

    def __init__(self, message: str, *, hint: str, server: str, question: str) -> None:
        super().__init__(message, hint=hint, server=server)
        self.question = redact(question)


class EnvironmentSetupError(RemoteToolError):
    """Python or the packages could not be installed on a server."""


class JobError(RemoteToolError):
    """A job could not be started, read or stopped."""


class SomeServersFailedError(RemoteToolError):
    """At least one of several servers failed.

    Attributes:
        failures: The error of each failed server, by name.
        succeeded: The names of the servers that succeeded.
    """

    def __init__(self, failures: Mapping[str, RemoteToolError], succeeded: list[str]) -> None:
        names = ", ".join(failures)
        super().__init__(f"{len(failures)} of {len(failures) + len(succeeded)} servers failed: {names}")
        self.failures = dict(failures)
        self.succeeded = succeeded

    @property
    def exit_code(self) -> int:
        """3 if some servers succeeded; otherwise the code that the failures share, or 1."""
        if self.succeeded:
            return 3
        codes = {error.program_exit_code for error in self.failures.values()}
        return codes.pop() if len(codes) == 1 else 1
