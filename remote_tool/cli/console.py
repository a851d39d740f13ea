"""The only code that prints: steps as they go, tables, notices, errors. Data to stdout, everything else to stderr."""

from __future__ import annotations

import getpass
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

import typer
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from remote_tool.cli.plain import one_line, visible
from remote_tool.errors import ConfigError, RemoteToolError, SomeServersFailedError
from remote_tool.workflows.events import (
    Event,
    Notice,
    Outcome,
    StepEnded,
    StepOutput,
    StepProgress,
    StepStarted,
)
from remote_tool.workspace import Hooks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

SSH_LOG_VERBOSITY = 2
STYLES = {Outcome.DONE: "green", Outcome.UNCHANGED: "dim", Outcome.FAILED: "bold red"}


def standard_error() -> RichConsole:
    """Rich on stderr; it respects NO_COLOR and pipes."""
    return RichConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def show_error(error: RemoteToolError) -> None:
    """Print an error and what to do about it; clear without colour."""
    console = standard_error()
    if isinstance(error, SomeServersFailedError):
        show_failures(error.failures, console)
        return
    messages = error.problems if isinstance(error, ConfigError) else [error.message]
    for message in messages:
        console.print(Text.assemble(("error", "bold red"), f": {visible(message)}"))
    if error.hint:
        console.print(Text.assemble(("hint", "bold"), f": {visible(error.hint)}"))


def show_failures(failures: Mapping[str, RemoteToolError], console: RichConsole | None = None) -> None:
    """Name every server that failed, with its error; the same hint only once."""
    console = console or standard_error()
    hints: list[str] = []
    for server, error in failures.items():
        prefix = "" if server in error.message else f"{server}: "
        console.print(Text.assemble(("error", "bold red"), f": {visible(prefix + error.message)}"))
        if error.hint and error.hint not in hints:
            hints.append(error.hint)
    for hint in hints:
        console.print(Text.assemble(("hint", "bold"), f": {visible(hint)}"))


def inform(text: str) -> None:
    """Say something that is no data."""
    standard_error().print(Text(visible(text)))


def leave_unless_ok(exit_code: int) -> None:
    """End the program with a status when it is not 0."""
    if exit_code:
        raise typer.Exit(exit_code)


class Console:
    """Draws what the workflows of one command report.

    On a terminal every server has a line that changes while its step goes on; in a pipe every step that ended is a
    line. Reports come from another thread.
    """

    def __init__(self, *, verbose: int = 0, quiet: bool = False, show_output: bool = False) -> None:
        self._error = standard_error()
        self._verbose = verbose
        self._quiet = quiet
        self._show_output = show_output
        self._steps: dict[str, _RunningStep] = {}
        self._live: Live | None = None
        self._lock = threading.Lock()
        if verbose >= SSH_LOG_VERBOSITY:
            logging.basicConfig(stream=sys.stderr, level=logging.INFO)
            logging.getLogger("asyncssh").setLevel(logging.DEBUG)

    @property
    def hooks(self) -> Hooks:
        """What a workspace reports to."""
        return Hooks(
            report=self.report,
            trace=self.trace if self._verbose else None,
            ask_password=self.ask_password if sys.stdin.isatty() and self._error.is_terminal else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the changing lines away."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def report(self, event: Event) -> None:
        """Draw an event."""
        with self._lock:
            self._draw(event)

    def _draw(self, event: Event) -> None:
        match event:
            case StepStarted(server, step):
                self._steps[server] = _RunningStep(server, step)
            case StepProgress(server, step, text):
                self._steps.setdefault(server, _RunningStep(server, step)).text = one_line(text)
            case StepEnded():
                self._end_step(event)
            case StepOutput(server, _, data):
                self._show_step_output(server, data)
            case Notice(server, text):
                prefix = f"{server}: " if server and server not in text else ""
                self._print(Text(f"{prefix}{visible(text)}", style="yellow"))
        self._refresh()

    def _end_step(self, event: StepEnded) -> None:
        self._steps.pop(event.server, None)
        if self._quiet:
            return
        seconds = f" ({event.seconds:.1f} s)" if event.outcome is not Outcome.UNCHANGED else ""
        detail = f": {visible(event.detail.removeprefix(f'{event.server}: '))}" if event.detail else ""
        line = Text(f"{event.server}: {event.step}: ")
        line.append(event.outcome.value, STYLES[event.outcome])
        line.append(f"{seconds}{detail}")
        self._print(line)

    def _show_step_output(self, server: str, data: bytes) -> None:
        if self._show_output and not self._quiet:
            for line in data.decode(errors="replace").replace("\r", "\n").splitlines():
                self._print(Text(f"{server} | {visible(line)}", style="dim"))

    def _refresh(self) -> None:
        if self._quiet or not self._error.is_terminal:
            return
        if self._live is None and self._steps:
            self._live = Live(console=self._error, get_renderable=self._lines, transient=True, refresh_per_second=10)
            self._live.start()

    def _lines(self) -> RenderableType:
        return Group(*(step.line() for step in list(self._steps.values())))

    def _print(self, text: Text) -> None:
        self._error.print(text)

    def trace(self, server: str, label: str, seconds: float) -> None:
        """Show a remote command and the time it took."""
        self._print(Text(f"[{server}] {seconds:.3f} s  {one_line(label)[:500]}", style="dim"))

    def ask_password(self, prompt: str) -> str | None:
        """Ask for a secret on the terminal."""
        self.close()
        try:
            return getpass.getpass(f"{visible(prompt)}: ")
        except EOFError:
            return None


class _RunningStep:
    def __init__(self, server: str, step: str) -> None:
        self.server = server
        self.step = step
        self.text = ""
        self._began = time.monotonic()
        self._spinner = Spinner("dots")

    def line(self) -> RenderableType:
        seconds = time.monotonic() - self._began
        text = Text(f"{self.server}: {self.step} {seconds:.0f} s {self.text}", no_wrap=True, overflow="ellipsis")
        self._spinner.update(text=text)
        return self._spinner


def confirm(question: str) -> bool:
    """Ask yes or no on the terminal; no is the default."""
    return typer.confirm(visible(question), err=True)
