"""An attached command: it has the client's stdout and stderr, and does not outlive the client."""

from __future__ import annotations

import os
import select
import sys
import time

from . import activation, job_files
from .activation import Activation, Origin
from .commands import LEFTOVER_GRACE, SETTLE_SECONDS, decode_status, restore_signals, run_shell, spawn_shell
from .requests import Request, RequestError, client_is_gone, is_text
from .signals import signal
from .subreaper import become_subreaper
from .trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, NoReturn, Optional, Tuple

    from .inside import Inside

    Begin = Callable[[], int]
# Shells keep their own descriptors at 10 and above, and can close those with one digit.
_SCRIPT_DESCRIPTOR = 9
_CANNOT_START = 127
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def run(request: Request) -> int:
    """Carry out op ``run``; returns the exit status of the command, 128+N for signal N."""
    folders = request.folders()
    request.get("command", is_text)
    user = request.get("environment", lambda value: isinstance(value, dict), default={})
    job_id = f"run-{os.urandom(16).hex()}"
    origin = Origin(folders.project, job_id, request.get("server", is_text, default=""))
    active = activation.load_activation(folders.activation)
    if not os.path.isdir(folders.project):
        raise RequestError(f"{folders.project} is not there", hint="remote-tool rsync")
    if request.get("entry", lambda _: True) is not None:
        begin, inside = _behind_door(request, active, user, origin)
    else:
        begin, inside = _here(request, active, user, origin), None
    os.chdir(folders.project)
    try:
        return _Attached(job_id, inside).run(begin)
    except OSError as error:
        # After the mark the streams are the command's, so this is no framed answer.
        sys.stderr.write(f"The command could not be started: {error.strerror}\n")
        return _CANNOT_START


def _here(request: Request, active: Activation, user: Dict[str, str], origin: Origin) -> "Begin":
    """Make a command ready that begins here, and tell the client that it does."""
    environment = activation.build_environment(os.environb, active, user, origin)
    script = _hide_script(request.folders().scripts, request.get("command", is_text))
    mark = b"\0%s run\n" % request.nonce.encode("ascii")
    job_files.write_all(1, mark)
    job_files.write_all(2, mark)

    def become() -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(script, _SCRIPT_DESCRIPTOR)
        run_shell(f"/proc/self/fd/{_SCRIPT_DESCRIPTOR}", environment)

    def begin() -> int:
        try:
            return spawn_shell(script, _SCRIPT_DESCRIPTOR, environment)
        except (NotImplementedError, AttributeError):
            return _fork(become)

    return begin


def _behind_door(
    request: Request, active: Activation, user: Dict[str, str], origin: Origin
) -> "Tuple[Begin, Optional[Inside]]":
    """Make a command ready that begins behind a launch command, where it tells the client itself that it does."""
    from . import entering, inside  # noqa: PLC0415 - few servers have a launch command

    door = entering.read_door(request.get("entry", lambda _: True), f"remote-tool-{origin.job_id}", request.folders())
    assert door is not None
    entering.make_home(door)
    outside = entering.outside_environment(os.environb)
    settings = entering.settings_for(door, active, user, origin)
    script = entering.run_script(door, settings, request.get("command", is_text), request.nonce)

    def become() -> NoReturn:
        entering.enter(door.words, script, outside)

    return lambda: _fork(become), inside.Inside(origin.job_id, door.ask, door.end, outside)


def _hide_script(folder: str, command: str) -> int:
    """Return a descriptor of a nameless file with the command: it may be long, and ``ps`` shows no secret."""
    name = os.path.join(folder, f".run-{os.urandom(8).hex()}")
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(name)
    # Closed by the script itself, so that its children do not get it.
    text = f"exec {_SCRIPT_DESCRIPTOR}<&-; {command}\n"
    job_files.write_all(file, text.encode("utf-8", "surrogateescape"))
    os.lseek(file, 0, os.SEEK_SET)
    return file


class _Attached:
    def __init__(self, job_id: str, inside: "Optional[Inside]" = None) -> None:
        self._inside = inside
        self._status: Optional[int] = None
        self._child = 0
        self._is_childless = False
        self._tree = Tree(job_id, "", self._pause, inside)
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_ENDING_SIGNALS):
            signal.signal(number, _do_nothing)

    def run(self, begin: "Begin") -> int:
        """Run the command and end its whole tree with it, or with the client."""
        gets_orphans = become_subreaper()
        self._child = begin()
        while self._status is None and not self._must_end():
            self._reap()
        has_ended = self._status is not None
        # Whatever it left behind would be a child of ours; then nobody has to look through all processes.
        is_alone = gets_orphans and self._is_childless and self._inside is None
        if not is_alone and not (has_ended and self._tree.wait(SETTLE_SECONDS, _never)):
            self._tree.signal(signal.SIGTERM)
            if not self._tree.wait(LEFTOVER_GRACE, _never):
                self._tree.kill()
        if self._inside is not None:
            self._inside.remove()
        end = decode_status(self._status)
        if end.exit_code is not None:
            return end.exit_code
        return 128 + (os.WTERMSIG(self._status) if self._status is not None else signal.SIGKILL)

    def _must_end(self) -> bool:
        """Wait for a signal or for word from the client; whether the command shall end."""
        ready = select.select([0, self._woken], [], [])[0]
        numbers = os.read(self._woken, 4096) if self._woken in ready else b""
        if any(number in numbers for number in _ENDING_SIGNALS):
            return True
        return 0 in ready and client_is_gone(0)

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_childless = True
                return
            if pid == 0:
                return
            if pid == self._child and self._status is None:
                self._status = status


def _fork(become: Callable[[], NoReturn]) -> int:
    """Start a command by a fork; returns its pid."""
    pid = os.fork()
    return pid if pid else _become_command(become)


def _become_command(become: Callable[[], NoReturn]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        restore_signals()
        become()
    except BaseException as error:  # noqa: BLE001 - it is told to the user, and this must never return
        os.write(2, f"The command could not be started: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(_CANNOT_START)


def _do_nothing(number: int, frame: object) -> None:
    """Let the wake-up descriptor tell."""


def _never() -> bool:
    return False
