"""The only code that prints: what goes on, notices, questions, errors. Data to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

import typer

import remote_tool
from remote_tool.cli import streams
from remote_tool.cli.plain import one_line, paragraph, visible
from remote_tool.cli.terminal import ask_hidden
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.cli.options import Targets

SSH_LOG_VERBOSITY = 2
LONGEST_LABEL = 500
STYLES = {Outcome.DONE: "green", Outcome.UNCHANGED: "dim", Outcome.FAILED: "bold red"}


def print_data(text: str) -> None:
    """Print a line or more of data."""
    streams.write_text(streams.OUT, visible(text) + "\n")


def inform(text: str) -> None:
    """Say something that is no data."""
    say(visible(text))


def say(*parts: str | tuple[str, str]) -> None:
    """Print harmless text on stderr; a part may have a style, which shows on a terminal."""
    if streams.is_terminal(streams.ERR):
        from remote_tool.cli.progress import print_styled  # noqa: PLC0415 - in a pipe Rich need not load

        print_styled(*parts)
    else:
        streams.write_text(streams.ERR, "".join(part if isinstance(part, str) else part[0] for part in parts) + "\n")


def show_error(error: RemoteToolError) -> None:
    """Print an error and what to do about it; clear without colour."""
    if isinstance(error, SomeServersFailedError):
        show_failures(error.failures)
        return
    for message in error.problems if isinstance(error, ConfigError) else [error.message]:
        say(("error", "bold red"), f": {paragraph(message)}")
    _show_hints([error.hint])


def show_failures(failures: Mapping[str, RemoteToolError]) -> None:
    """Name every server that failed, with its error; the same hint only once."""
    for server, error in failures.items():
        say(("error", "bold red"), f": {paragraph(_naming(server, error.message))}")
    _show_hints([error.hint for error in failures.values()])


def _naming(server: str, text: str) -> str:
    """Return a text that names its server: as it is when it does so itself, as a word and not by chance in another."""
    there = re.search(rf"(?<![\w.-]){re.escape(server)}(?![\w-]|\.\w)", text)
    return text if there or not server else f"{server}: {text}"


def _show_hints(hints: list[str]) -> None:
    for hint in dict.fromkeys(hints):
        if hint:
            say(("hint", "bold"), f": {one_line(hint)}")


def leave_unless_ok(exit_code: int) -> None:
    """End the program with a status when it is not 0."""
    if exit_code:
        raise typer.Exit(exit_code)


def can_ask() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and streams.is_terminal(streams.ERR)


def ask(question: str, default: str = "") -> str:
    """Ask on the terminal; an empty answer means the default, and Ctrl-D leaves as Ctrl-C does."""
    shown = f" [{default}]" if default else ""
    streams.write_text(streams.ERR, f"{visible(question)}{visible(shown)}: ")
    line = sys.stdin.readline()
    if not line:
        streams.write_text(streams.ERR, "\n")
        raise KeyboardInterrupt
    return line.strip() or default


def confirm(question: str) -> bool:
    """Ask yes or no on the terminal; no is the default."""
    return ask(f"{question} [y/N]").lower() in {"y", "yes"}


class Console:
    """Draws what the workflows of one command report.

    On a terminal every server has a line that changes while its step goes on; in a pipe every step that ended is a
    line. Reports come from another thread.

    Args:
        verbose: 1: remote commands; 2: the SSH library too.
        show_output: Whether the output of steps is shown.
        activity: What is said on a terminal while no step goes on; empty when the command itself prints meanwhile.
    """

    def __init__(self, *, verbose: int = 0, show_output: bool = False, activity: str = "") -> None:
        self._verbose = verbose
        self._show_output = show_output
        self._steps: Steps = _running_steps(activity)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        if verbose >= SSH_LOG_VERBOSITY:
            _show_ssh_log()
        else:
            # It warns of sockets and programs that end under it, which our own errors are about.
            logging.getLogger("asyncio").setLevel(logging.ERROR)

    @property
    def hooks(self) -> remote_tool.Hooks:
        """What a workspace reports to."""
        return remote_tool.Hooks(
            report=self.report,
            trace=self.trace if self._verbose else None,
            ask_password=self.ask_password if can_ask() else None,
        )

    @property
    def seconds(self) -> float:
        """Since the command began."""
        return time.monotonic() - self._began

    def find_workspace(self, targets: Targets | None = None) -> remote_tool.Workspace:
        """Find the workspace here or above, with the hosts of a list when one was given; it reports to this console."""
        workspace = remote_tool.Workspace.find(hooks=self.hooks)
        if targets is not None and targets.hosts is not None:
            return workspace.with_hosts(targets.hosts)
        if targets is not None and targets.hostfile is not None:
            return workspace.with_hostfile(targets.hostfile)
        return workspace

    def rebind(self, workspace: remote_tool.Workspace) -> remote_tool.Workspace:
        """Return this workspace, reporting to this console from now on."""
        return remote_tool.Workspace(workspace.config, self.hooks)

    def __enter__(self) -> Self:
        self._steps.show()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._steps.hide()
            # Whoever asks for a password later draws nothing that nobody takes away.
            self._steps = _NoSteps()

    def report(self, event: Event) -> None:
        """Draw an event."""
        with self._lock:
            self._draw(event)

    def trace(self, server: str, label: str, seconds: float) -> None:
        """Show a remote command and the time it took."""
        say((f"[{one_line(server)}] {seconds:.3f} s  {one_line(label)[:LONGEST_LABEL]}", "dim"))

    def ask_password(self, prompt: str) -> str | None:
        """Ask for a secret on the terminal; None when there is no answer."""
        with self._lock:
            self._steps.hide()
        try:
            return ask_hidden(f"{visible(prompt).rstrip(': ')}: ")
        finally:
            with self._lock:
                self._steps.show()

    def _draw(self, event: Event) -> None:
        match event:
            case StepStarted(server, step):
                self._steps.start(server, step)
            case StepProgress(server, _, text):
                self._steps.tell(server, text)
            case StepEnded(server):
                self._steps.end(server)
                say(*_ended_line(event))
            case StepOutput(server, _, data) if self._show_output:
                for line in data.decode(errors="replace").replace("\r", "\n").splitlines():
                    say((f"{one_line(server)} | {visible(line)}", "dim"))
            case Notice(server, text):
                say((paragraph(_naming(server, text)), "yellow"))


class Steps(Protocol):
    """Shows which step of which server goes on."""

    def show(self) -> None: ...
    def hide(self) -> None: ...
    def start(self, server: str, step: str) -> None: ...
    def tell(self, server: str, text: str) -> None: ...
    def end(self, server: str) -> None: ...


class _NoSteps:
    """A pipe shows no step that goes on."""

    def show(self) -> None: ...
    def hide(self) -> None: ...
    def start(self, server: str, step: str) -> None: ...
    def tell(self, server: str, text: str) -> None: ...
    def end(self, server: str) -> None: ...


def _running_steps(activity: str) -> Steps:
    if not streams.is_terminal(streams.ERR):
        return _NoSteps()
    from remote_tool.cli.progress import RunningSteps  # noqa: PLC0415 - in a pipe Rich need not load

    return RunningSteps(activity)


def _ended_line(event: StepEnded) -> tuple[str | tuple[str, str], ...]:
    """``gpu1: rsync: done (0.3 s), sent 3 files``."""
    seconds = "" if event.outcome is Outcome.UNCHANGED else f" ({event.seconds:.1f} s)"
    detail = f", {event.detail}" if event.detail else ""
    return (
        f"{one_line(event.server)}: {one_line(event.step)}: ",
        (event.outcome.value, STYLES[event.outcome]),
        one_line(f"{seconds}{detail}"),
    )


class _SshLog(logging.Handler):
    """The log of the SSH library quotes what servers send."""

    def emit(self, record: logging.LogRecord) -> None:
        say((one_line(f"{record.name}: {record.getMessage()}"), "dim"))


def _show_ssh_log() -> None:
    log = logging.getLogger("asyncssh")
    log.setLevel(logging.DEBUG)
    log.addHandler(_SshLog())
    log.propagate = False
