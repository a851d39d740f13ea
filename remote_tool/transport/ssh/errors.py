"""Map all errors of asyncssh and of the system to our own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from remote_tool.transport.ssh.channel import lost
from remote_tool.transport.ssh.library import asyncssh
from remote_tool.transport.ssh.login_errors import Progress, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote_tool.errors import ConnectError, LoginError, RemoteToolError

# All other exceptions are bugs of ours and are not caught.
FOREIGN = (
    asyncssh.Error,
    asyncssh.ConfigParseError,
    asyncssh.KeyImportError,
    asyncssh.KeyExportError,
    asyncssh.KeyGenerationError,
    asyncssh.KeyEncryptionError,
    asyncssh.ChannelListenError,
    asyncssh.PasswordChangeRequired,
    asyncssh.BreakReceived,
    asyncssh.SignalReceived,
    asyncssh.TerminalSizeChanged,
    OSError,
    UnicodeError,
)


@contextmanager
def explained(progress: Progress) -> Iterator[None]:
    """Convert foreign errors to ours, with the server's name, the wrong value and what to do."""
    try:
        yield
    except FOREIGN as error:
        if progress.stage is Stage.READY and isinstance(error, asyncssh.ChannelOpenError):
            raise  # not a failure: the session waits for a free slot
        raise (progress.refusal or explain(error, progress)) from None


def explain(error: Exception, progress: Progress) -> RemoteToolError:
    """Return our error for one of asyncssh or of the system."""
    if progress.stage is Stage.READY:
        return lost(progress.endpoint.server, error)
    if isinstance(error, OSError):
        return progress.system_error(error)
    if isinstance(error, asyncssh.ConnectionLost):
        return progress.hung_up(error)
    return _explain_login(error, progress) or _explain_protocol(error, progress)


def _explain_login(error: Exception, progress: Progress) -> LoginError | None:
    if "Too many authentication failures" in str(error):  # the code is shared with other reasons
        return progress.too_many_failures()
    if isinstance(error, asyncssh.PermissionDenied):
        return progress.not_let_in()
    if isinstance(error, asyncssh.PasswordChangeRequired):
        return progress.login_error("the password has expired")
    if isinstance(error, asyncssh.KeyImportError | asyncssh.KeyEncryptionError):
        return progress.login_error(f"a key cannot be used: {error}")
    return None


def _explain_protocol(error: Exception, progress: Progress) -> ConnectError:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return progress.untrusted_host(error)
    if isinstance(error, asyncssh.ChannelOpenError):
        return progress.unreachable_from_jump(error)
    return progress.no_ssh(error)
