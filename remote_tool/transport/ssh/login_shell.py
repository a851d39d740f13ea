"""Errors and notices about a login shell that does not run our script, or is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.errors import LoginShellError, RemoteCommandError
from remote_tool.transport.ssh.endpoint import printable

if TYPE_CHECKING:
    from remote_tool.transport.host import Exit

# A wait must be reported within 5 s.
NOTICE_SECONDS = 4.0
# The wait for the mark; shorter than other timeouts for an answer (60 s), which cannot name the cause.
LONGEST_START = 45.0
# The wait for the end of a login shell after its stdin was closed.
END_SECONDS = 1.0
TIMED_OUT_STATUS = 124  # as for timeout(1)
MAX_NOISE_BYTES = 16 * 1024 * 1024
LONGEST_QUOTE = 200
# Ends a startup file in a shell that is not interactive.
_GUARD = "[[ $- == *i* ]] || return"
# A shell that quotes this many bytes of our input does so on purpose.
_MIN_QUOTE_BYTES = 8


def slow_notice() -> str:
    """Return a message that the login shell is slow."""
    return (
        f"waiting up to {LONGEST_START:g} s for the login shell: a startup file, such as ~/.bashrc, is slow "
        "or reads standard input"
    )


def swallowed(server: str) -> LoginShellError:
    """Return the error for a login shell that read our input; nothing was run."""
    text = f"a startup file of the login shell on {server} (such as ~/.bashrc) reads standard input"
    return LoginShellError(text, hint=_hint(server), server=server)


def redirected(server: str, *, has_run: bool) -> LoginShellError:
    """Return the error for a login shell that redirects its standard output."""
    text = f"a startup file of the login shell on {server} (such as ~/.bashrc) redirects standard output"
    text += ": what the command did is unknown" if has_run else ""
    return LoginShellError(text, hint=_hint(server), server=server)


def not_run(server: str, end: Exit, output: bytes, sent: bytes) -> RemoteCommandError:
    """Return the error for a login shell that ended without a sign that it ran the script.

    Args:
        server: The server's name.
        end: Its exit status or signal.
        output: The end of its output.
        sent: Our input; a shell that takes it for commands quotes it, which an error must not repeat.
    """
    quote = output[-LONGEST_QUOTE:]
    if any(quote[at : at + _MIN_QUOTE_BYTES] in sent for at in range(len(quote) - _MIN_QUOTE_BYTES + 1)):
        quote = b""
    shown = printable(quote.decode(errors="replace").strip())
    how = f"SIG{end.signal}" if end.signal else f"status {end.status}"
    text = f"{server}: the login shell did not run the command" + (
        f": {shown}" if shown else f", and exited with {how}"
    )
    return _error(text, server, end.status or 1)


def too_slow(server: str) -> RemoteCommandError:
    """Return the error for a login shell that has not started the script in time, but may still do so."""
    text = (
        f"{server}: the login shell did not start the command within {LONGEST_START:g} s: "
        "a startup file, such as ~/.bashrc, is waiting for something"
    )
    return _error(text, server, TIMED_OUT_STATUS)


def too_noisy(server: str) -> RemoteCommandError:
    """Return the error for a login shell that prints endlessly."""
    return _error(
        f"{server}: the login shell printed more than {MAX_NOISE_BYTES} bytes before the command started", server, 1
    )


def _error(text: str, server: str, status: int) -> RemoteCommandError:
    hint = f"Check its startup files. {_hint(server)}"
    return RemoteCommandError(text, server=server, command="login shell", exit_status=status, hint=hint)


def _hint(server: str) -> str:
    return f"On {server}, put this line first in ~/.bashrc: {_GUARD}"
