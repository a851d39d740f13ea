"""Run the screen of ``top``: connect, show it, and restore the terminal.

It is a module of its own because it loads Textual.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import termios
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, NoReturn, TypeVar

import remote_tool
from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import harmless_line, one_line
from remote_tool.cli.tables.stacks import stack_lines
from remote_tool.cli.top.board import Board
from remote_tool.cli.top.screen import TopApp
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import JobSelection, choose_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from remote_tool.cli.groups import ConnectionFlags, Targets
    from remote_tool.jobs.job import Job
    from remote_tool.workflows.events import Event

T = TypeVar("T")
# The screen is shown after this time, whether or not all servers have answered.
FIRST_SECONDS = 3.0
# The last lines of a log, before new ones.
SHOWN_LINES = 1000
# Switches off the alternate screen, the mouse, bracketed pasting and the keys of kitty, and shows the cursor.
LEAVE_SCREEN = "\x1b[<u" + "".join(f"\x1b[?{mode}l" for mode in (1000, 1002, 1003, 1004, 1006, 1015, 2004, 1049))
LEAVE_SCREEN += "\x1b[?25h"


def show_screen(targets: Targets, connection: ConnectionFlags, interval: float) -> None:
    """Show the screen until the user leaves it."""
    console = connection.console("connecting")
    workspace = targets.find_workspace(console)
    names = choose_servers(workspace.config, targets.servers)
    board = Board(names)
    hooks = _Hooks(console.hooks, board)
    watching = remote_tool.Workspace(workspace.config, hooks.hooks)
    with console:
        running = watching.watch(board.apply, names, interval=interval)
        running.when_done(lambda _: board.end())
        try:
            while not board.wait_for_servers(FIRST_SECONDS) and hooks.is_asking:
                pass
        except BaseException:
            running.stop()
            raise
    try:
        if not board.has_ended:
            hooks.is_shown = True
            with terminal_restored():
                _run_until_signal(TopApp(board, _Keys(watching)))
        if board.has_ended:
            running.result()
    finally:
        running.stop()


def _run_until_signal(app: TopApp) -> None:
    """Show the screen; a signal leaves it as a key does, and then the program.

    The usual handlers raise an exception. Between two steps of the event loop, that would lose the next step of a task,
    for whose end the loop then waits.
    """
    came: list[int] = []
    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        def leave(number: int, _frame: FrameType | None) -> None:
            came.append(number)
            if len(came) > 1:
                raise SystemExit(128 + number)  # the screen does not end
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(app.exit)

        with _handled_by(leave, signal.SIGTERM, signal.SIGINT):
            runner.run(app.run_async())
    if came:
        signal.raise_signal(came[0])


class _Hooks:
    """The callbacks of the console until the screen is shown; afterwards, no questions, and notices on the screen."""

    def __init__(self, console: remote_tool.Hooks, board: Board) -> None:
        self.is_shown = False
        self.is_asking = False
        self._console = console
        self._board = board

    @property
    def hooks(self) -> remote_tool.Hooks:
        """The callbacks for a workspace."""
        ask, confirm = self._console.ask_password, self._console.confirm
        return remote_tool.Hooks(
            report=self._report,
            ask_password=None if ask is None else lambda prompt: self._ask(ask, prompt),
            confirm=None if confirm is None else lambda question: bool(self._ask(confirm, question)),
        )

    def _ask(self, ask: Callable[[str], T], text: str) -> T | None:
        if self.is_shown:
            return None
        self.is_asking = True
        try:
            return ask(text)
        finally:
            self.is_asking = False

    def _report(self, event: Event) -> None:
        if not self.is_shown:
            self._console.report(event)
        elif isinstance(event, Notice):
            self._board.notice = one_line(f"{event.server}: {event.text}" if event.server else event.text)


class _Keys:
    """The actions of the keys."""

    def __init__(self, workspace: remote_tool.Workspace) -> None:
        self._workspace = workspace

    def log(self, job: Job, show: Callable[[str], None]) -> Callable[[], None]:
        """Pass on the lines of the log until the job ends, or until the returned function is called."""
        command = [sys.executable, "-m", "remote_tool", "job-tail", job.id, "--lines", str(SHOWN_LINES)]
        following = subprocess.Popen(
            command,
            cwd=self._workspace.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def read() -> None:
            # Textual refuses calls of other threads once it ends.
            with following, suppress(RuntimeError, CancelledError):
                for line in following.stdout or ():
                    # Only the last state of a progress bar is shown.
                    show(harmless_line(line.decode("utf-8", "replace").rstrip().rpartition("\r")[2]))

        Thread(target=read, daemon=True).start()
        return following.terminate

    def attach(self, job: Job) -> None:
        """Attach to the terminal until it ends or the user detaches."""
        self._run("job-attach", str(job.key))

    def stacks(self, job: Job) -> str:
        """Return where the Python processes of the job are."""
        answer = self._workspace.take_stacks(JobSelection(jobs=(job.id,)))
        problems = [one_line(f"{server}: {error}") for server, error in answer.errors.items()]
        return "\n".join([*stack_lines(answer), *problems]) or "No Python process is running in this job"

    def kill(self, job: Job) -> str:
        """Stop the job."""
        (stopped,) = self._workspace.stop_jobs(JobSelection(jobs=(job.id,))).raise_if_any_failed().jobs
        return f"job {stopped.key} on {stopped.server}: {stopped.state}"

    def _run(self, *words: str) -> None:
        """Run a command of this program on the terminal, in its own process, then wait for Enter."""
        # Ctrl-C is for that command alone. It would inherit SIG_IGN, but not a handler.
        try:
            with _handled_by(lambda _number, _frame: None, signal.SIGINT), _handled_by(_raise_left, signal.SIGTERM):
                subprocess.run([sys.executable, "-m", "remote_tool", *words], cwd=self._workspace.root, check=False)
                streams.write_text(streams.OUT, "\nPress Enter to go back to top. ")
                sys.stdin.readline()
        except _LeftError:
            signal.raise_signal(signal.SIGTERM)


class _LeftError(Exception):
    """SIGTERM came while another command had the terminal."""


def _raise_left(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _LeftError


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    former_handlers = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, former_handler in former_handlers.items():
            signal.signal(number, former_handler)


@contextmanager
def terminal_restored() -> Iterator[None]:
    """Leave the terminal as it is now, also after SIGTERM or a bug of the screen."""
    attributes = termios.tcgetattr(streams.IN)
    try:
        yield
    finally:
        with suppress(OSError, termios.error):
            streams.write_text(streams.ERR, LEAVE_SCREEN)
            termios.tcsetattr(streams.IN, termios.TCSANOW, attributes)
