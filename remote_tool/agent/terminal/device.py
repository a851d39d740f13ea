"""A pseudo-terminal: its two sides, its size, and the processes on it."""

from __future__ import annotations

import fcntl
import locale
import os
import resource
import signal
import struct
import termios
from contextlib import suppress

from remote_tool.agent.proc.processes import close_descriptors
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.terminal import DEFAULT_WINDOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, NoReturn, Tuple

# Erasing a character erases all its bytes; termios has no name for it.
_IUTF8 = 0o40000
_UTF8_LOCALE = "C.UTF-8"
_KNOWN_TERMINAL = b"xterm-256color"
_TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo", "/usr/share/lib/terminfo")


class Device(NamedTuple):
    """A pseudo-terminal: our end and the program's; both stay open to its end."""

    master: int
    slave: int


def open_device(window: Tuple[int, int] = DEFAULT_WINDOW) -> Device:
    """Create a pseudo-terminal of this size; OSError when the machine has none left."""
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    modes[0] |= _IUTF8
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    resize(master, window)
    os.set_blocking(master, False)
    return Device(master, slave)


def resize(master: int, window: Tuple[int, int]) -> None:
    """Set the size in rows and columns; the programs in the foreground get SIGWINCH if it is another."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", *window, 0, 0))


def take(slave: int) -> None:
    """Make a terminal this process's own; it must lead its session."""
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for standard in (0, 1, 2):
        os.dup2(slave, standard)


def lead() -> None:
    """Fork, return in the child, and end as it ends.

    When the first process of a terminal's session ends, the kernel hangs up on those in the foreground. A shell that
    runs a job's command ends at once on SIGTERM, and would take the grace period from its programs. So that process
    is ours, and it takes the foreground before it ends.
    """
    everything = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    pid = os.fork()
    if pid:
        _wait_for(pid)
    os.setpgid(0, 0)
    # SIGTTOU is blocked.
    os.tcsetpgrp(0, os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _wait_for(pid: int) -> NoReturn:
    try:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            signal.signal(number, signal.SIG_IGN)
        # A hang-up comes only to the first process of the session.
        signal.signal(signal.SIGHUP, lambda _number, _frame: _hang_up(pid))
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        close_descriptors(set())
        status = os.waitpid(pid, os.WUNTRACED)[1]
        while os.WIFSTOPPED(status):
            # Nobody else could continue it.
            os.killpg(pid, signal.SIGCONT)
            status = os.waitpid(pid, os.WUNTRACED)[1]
        with suppress(OSError):
            os.tcsetpgrp(0, os.getpgrp())
        if os.WIFSIGNALED(status):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if os.WTERMSIG(status) != signal.SIGKILL:
                signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status))
    finally:
        os._exit(1)


def _hang_up(group: int) -> None:
    with suppress(OSError):
        os.killpg(group, signal.SIGHUP)
        os.killpg(group, signal.SIGCONT)


def complete(environment: Dict[bytes, bytes]) -> None:
    """Put a type of terminal that this machine knows into an environment, and UTF-8 where it has no locale."""
    term = environment.get(b"TERM", b"")
    homes = (os.path.join(os.environ.get("HOME", "/"), ".terminfo"), *_TERMINFO)
    names = [
        os.path.join(folder, part) for folder in homes for part in (os.fsdecode(term[:1]), "%x" % (term or b"\0")[0])
    ]
    if not term or b"/" in term or not any(os.path.exists(os.path.join(name, os.fsdecode(term))) for name in names):
        environment[b"TERM"] = _KNOWN_TERMINAL
    if not any(environment.get(name) for name in (b"LC_ALL", b"LC_CTYPE", b"LANG")) and _has_locale(_UTF8_LOCALE):
        environment[b"LANG"] = _UTF8_LOCALE.encode("ascii")


def _has_locale(name: str) -> bool:
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except locale.Error:
        return False
    locale.setlocale(locale.LC_CTYPE, before)
    return True
