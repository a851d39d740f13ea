"""Attached commands: connected to the client's stdout and stderr, and ended with the client."""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from remote_tool.agent import activation
from remote_tool.agent.activation import Activation, Origin
from remote_tool.agent.proc.subreaper import become_subreaper
from remote_tool.agent.requests import Request, client_is_gone, is_text
from remote_tool.agent.supervisor.shell import (
    LEFTOVER_GRACE,
    SETTLE_SECONDS,
    decode_status,
    restore_signals,
    run_open_script,
    spawn_shell,
)
from remote_tool.agent.supervisor.tree import Tree
from remote_tool.protocol import job_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, NoReturn, Optional, Tuple

    from remote_tool.agent.terminal.shell import ShellEnds
    from remote_tool.agent.wrapper.container import WrappedProcesses

    Begin = Callable[[], int]
_CANNOT_START = 127
# The command may be the one that frees the project's disk.
_OTHER_PLACES = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - a random name, which is gone at once
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def run(request: Request) -> int:
    """Answer op ``run``; return the command's exit status, 128+N for signal N."""
    return _carry_out(request, None)


def shell(request: Request) -> int:
    """Answer op ``shell``: ``run`` with a client that sends input, and a terminal if it has one."""
    from remote_tool.agent.terminal.shell import open_shell  # noqa: PLC0415 - its modules are for terminals

    return _carry_out(request, open_shell(request))


def bare_shell(request: Request) -> int:
    """Answer op ``bare_shell``: ``shell`` without an environment, in the project's folder if there is one."""
    from remote_tool.agent.terminal.shell import open_shell  # noqa: PLC0415 - its modules are for terminals

    folders = request.folders()
    workdir = request.get("workdir", is_text, default="")
    places = (f"{folders.project}/{workdir}", folders.project, os.environ["HOME"])
    place = next((place for place in places if os.path.isdir(place)), "/")
    job_id = f"run-{os.urandom(16).hex()}"
    user = activation.with_home(request.get("environment", lambda value: isinstance(value, dict), default={}))
    ends = open_shell(request)
    origin = Origin(place.rstrip("/"), job_id, request.get("server", is_text, default=""))
    begin = _host(request, Activation("", "", "", {}, [], []), user, origin, ends)
    os.chdir(place)
    return _Attached(job_id, None, ends).run(begin)


def _carry_out(request: Request, ends: Optional[ShellEnds]) -> int:
    folders = request.folders()
    request.get("command", is_text)
    user = activation.with_home(request.get("environment", lambda value: isinstance(value, dict), default={}))
    job_id = f"run-{os.urandom(16).hex()}"
    active = activation.load_activation(folders.activation)
    workdir = folders.check_workdir(request.get("workdir", is_text, default=""))
    origin = Origin(folders.project, job_id, request.get("server", is_text, default=""), workdir)
    if request.get("entry", lambda _: True) is not None:
        begin, wrapped = _behind_wrapper(request, active, user, origin, ends)
    else:
        begin, wrapped = _host(request, active, user, origin, ends), None
    os.chdir(origin.folder)
    try:
        return _Attached(job_id, wrapped, ends).run(begin)
    except OSError as error:
        # After the mark the streams belong to the command, so this is not a framed answer.
        sys.stderr.write(f"The command could not be started: {error.strerror}\n")
        return _CANNOT_START


def _host(
    request: Request, active: Activation, user: Dict[str, str], origin: Origin, ends: Optional[ShellEnds]
) -> Begin:
    """Prepare a command that starts directly here, and notify the client that it starts."""
    environment = activation.build_environment(os.environb, active, user, origin)
    if ends is not None:
        script = _hide_script(request.folders().scripts, ends.command)
        ends.complete(environment)
        return lambda: _fork(lambda: run_open_script(script, environment), ends)
    script = _hide_script(request.folders().scripts, request.get("command", is_text))
    mark = b"\0%s run\n" % request.nonce.encode("ascii")
    for stream in _marked_outputs():
        job_folder.write_all(stream, mark)

    def become() -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        run_open_script(script, environment)

    def begin() -> int:
        try:
            return spawn_shell(script, environment)
        except (NotImplementedError, AttributeError):
            return _fork(become)

    return begin


def _behind_wrapper(
    request: Request, active: Activation, user: Dict[str, str], origin: Origin, ends: Optional[ShellEnds]
) -> Tuple[Begin, Optional[WrappedProcesses]]:
    """Prepare a command that starts behind a launch command and notifies the client itself."""
    from remote_tool.agent.wrapper import container as wrapped  # noqa: PLC0415 - few servers have a launch command
    from remote_tool.agent.wrapper import wrapper  # noqa: PLC0415 - few servers have a launch command

    command_wrapper = wrapper.read_wrapper(
        request.get("entry", lambda _: True), f"remote-tool-{origin.job_id}", request.folders()
    )
    assert command_wrapper is not None
    wrapper.make_home(command_wrapper)
    outside = wrapper.outside_environment(os.environb)
    settings = wrapper.settings_for(command_wrapper, active, user, origin)
    command = request.get("command", is_text) if ends is None else ends.command
    marked = _marked_outputs() if ends is None else ()
    script = wrapper.run_script(command_wrapper, settings, command, request.nonce, marked)
    words = command_wrapper.words
    if ends is not None:
        words = ends.words_for(command_wrapper, request.folders().scripts, script)

    def become() -> NoReturn:
        wrapper.enter(words, script if ends is None else None, outside)

    return lambda: _fork(become, ends), wrapped.WrappedProcesses(
        origin.job_id, command_wrapper.ask, command_wrapper.end, outside
    )


def _marked_outputs() -> Tuple[int, ...]:
    """Return the outputs that begin with our mark; a command that would have no standard error gets the other one.

    Where a startup file has joined both outputs, the client's script has dropped the standard error.
    """
    if not os.path.samestat(os.fstat(2), os.stat(os.devnull)):
        return 1, 2
    os.dup2(1, 2)
    return (1,)


def _hide_script(folder: str, command: str) -> int:
    """Return a descriptor of an unlinked file with the command: it may be long, and ``ps`` must not show secrets."""
    script = f"{command}\n".encode("utf-8", "surrogateescape")
    problem: Optional[OSError] = None
    for place in (folder, *_OTHER_PLACES):
        try:
            return _hide_in(place, script)
        except OSError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _hide_in(folder: str, script: bytes) -> int:
    name = os.path.join(folder, f".run-{os.urandom(8).hex()}")
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(name)
    try:
        job_folder.write_all(file, script)
    except OSError:
        os.close(file)
        raise
    os.lseek(file, 0, os.SEEK_SET)
    return file


class _Attached:
    def __init__(
        self, job_id: str, wrapped: Optional[WrappedProcesses] = None, ends: Optional[ShellEnds] = None
    ) -> None:
        self._wrapped = wrapped
        self._ends = ends
        self._status: Optional[int] = None
        self._child = 0
        self._is_childless = False
        self._tree = Tree(job_id, "", self._pause, wrapped)
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_ENDING_SIGNALS):
            signal.signal(number, _do_nothing)

    def run(self, begin: Begin) -> int:
        """Run the command, and end its process tree when it or the client ends."""
        gets_orphans = become_subreaper()
        self._child = begin()
        if self._ends is not None:
            self._ends.start()
        while self._status is None and not self._must_end():
            self._reap()
        has_ended = self._status is not None
        # As a subreaper we inherit any leftovers as children, and need not scan all processes.
        is_alone = gets_orphans and self._is_childless and self._wrapped is None
        if not is_alone and not (has_ended and self._tree.wait(SETTLE_SECONDS, _never)):
            self._tree.signal(signal.SIGTERM if self._ends is None else signal.SIGHUP)
            if not self._tree.wait(LEFTOVER_GRACE, _never):
                self._tree.kill()
        if self._wrapped is not None:
            self._wrapped.remove()
        code = self._exit_code()
        if self._ends is not None:
            self._ends.finish(code)
        return code

    def _exit_code(self) -> int:
        end = decode_status(self._status)
        if end.exit_code is not None:
            return end.exit_code
        return 128 + (os.WTERMSIG(self._status) if self._status is not None else signal.SIGKILL)

    def _must_end(self) -> bool:
        """Wait for a signal or a message from the client; return whether to end the command."""
        watched = [self._woken] if self._ends is not None else [0, self._woken]
        ready = select.select(watched, [], [])[0]
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


def _fork(become: Callable[[], NoReturn], ends: Optional[ShellEnds] = None) -> int:
    """Fork and start a command; return its pid."""
    pid = os.fork()
    return pid if pid else _become_command(become, ends)


def _become_command(become: Callable[[], NoReturn], ends: Optional[ShellEnds]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        restore_signals()
        if ends is not None:
            ends.enter()
        become()
    except BaseException as error:  # noqa: BLE001 - the user sees it, and this must never return
        os.write(2, f"The command could not be started: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(_CANNOT_START)


def _do_nothing(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor reports the signal."""


def _never() -> bool:
    return False
