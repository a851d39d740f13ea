"""Print data on stdout, and progress, notices and errors on stderr."""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, Self

import typer

import remote_tool
from remote_tool.cli.output import streams
from remote_tool.cli.output.questions import ask_hidden, can_ask, confirm_on_any_thread
from remote_tool.cli.output.sanitize import escape_controls, one_line, paragraph
from remote_tool.errors import ConfigError, RemoteToolError, SomeServersFailedError
from remote_tool.paths import REMOTE_FOLDER, current_folder, inside_project
from remote_tool.redaction import redact
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
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

SSH_LOG_VERBOSITY = 2
LONGEST_LABEL = 500
# This many servers are named beside a hint.
MOST_NAMES = 8
# A command in a hint that differs by server: the first one is shown for all.
_SSH_COMMAND = re.compile(r"\bssh .*@\S+")
# In a pipe: seconds until a running step first reports progress, and between further reports.
FIRST_PROGRESS, NEXT_PROGRESS = 5.0, 30.0
STYLES = {Outcome.DONE: "green", Outcome.UNCHANGED: "dim", Outcome.FAILED: "bold red"}


def _usual_workdir(root: Path) -> str:
    """Return the current folder relative to the project; empty in .remote, which is not on the servers."""
    folder = inside_project(root, current_folder()) or ""
    return "" if folder.partition("/")[0] == REMOTE_FOLDER else folder


def print_data(text: str) -> None:
    """Print lines of data."""
    streams.write_text(streams.OUT, escape_controls(text) + "\n")


def inform(text: str) -> None:
    """Print a message on stderr."""
    say(escape_controls(text))


def say(*parts: str | tuple[str, str], wraps: bool = False) -> None:
    """Print escaped text on stderr; on a terminal, a part may have a style."""
    parts = tuple(redact(part) if isinstance(part, str) else (redact(part[0]), part[1]) for part in parts)
    if streams.is_terminal(streams.ERR):
        from remote_tool.cli.output.progress import print_styled  # noqa: PLC0415 - in a pipe Rich need not load

        print_styled(*parts, wraps=wraps)
    else:
        streams.write_text(streams.ERR, "".join(part if isinstance(part, str) else part[0] for part in parts) + "\n")


def say_wrapped(*parts: str | tuple[str, str]) -> None:
    """Print sentences on stderr like :func:`say`; on a terminal, lines break between words."""
    say(*parts, wraps=True)


def show_error(error: RemoteToolError) -> None:
    """Print an error and its hint."""
    if isinstance(error, SomeServersFailedError):
        show_failures(error.failures)
        return
    for message in error.problems if isinstance(error, ConfigError) else [error.message]:
        say_wrapped(("error", "bold red"), f": {paragraph(message)}")
    _show_hint(error.hint)


def show_failures(failures: Mapping[str, RemoteToolError]) -> None:
    """Print the error of each server; then each hint, once for all servers that need it."""
    errors = list(failures.values())
    if len(errors) > 1 and not errors[0].server and all(error is errors[0] for error in errors):
        # The problem is on this machine.
        show_error(errors[0])
        return
    for server, error in failures.items():
        say_wrapped(("error", "bold red"), f": {paragraph(_naming(server, error.message))}")
    servers_by_cause: dict[str, list[str]] = {}
    for server, error in failures.items():
        servers_by_cause.setdefault(_SSH_COMMAND.sub("", _general(error.hint, server)), []).append(server)
    for servers in servers_by_cause.values():
        hint = failures[servers[0]].hint
        if len(servers) > 1:
            general = {_general(failures[server].hint, server) for server in servers}
            command = None if len(general) == 1 else _SSH_COMMAND.search(hint)
            # A command with the port of one server and the name of none would reach nobody.
            text = _general(hint[: command.start()], servers[0]) + hint[command.start() :] if command else general.pop()
            _show_hint(text, servers)
        else:
            _show_hint(hint, [] if len(failures) == 1 or hint != _general(hint, servers[0]) else servers)


def _general(hint: str, server: str) -> str:
    """Return a hint with NAME in place of the server."""
    return re.sub(rf"(?<![\w-]){re.escape(server)}(?![\w-])", "NAME", hint) if server else hint


def _naming(server: str, text: str) -> str:
    """Return a text with the name of its server before it, unless it contains the name as a word of its own."""
    is_named = re.search(rf"(?<![\w.-]){re.escape(server)}(?![\w-]|\.\w)", text)
    return text if is_named or not server else f"{server}: {text}"


def _show_hint(hint: str, servers: Sequence[str] = ()) -> None:
    if hint:
        names = ", ".join(servers[:MOST_NAMES])
        names += f" and {len(servers) - MOST_NAMES} more" if len(servers) > MOST_NAMES else ""
        say_wrapped(("hint", "bold"), f"{names and f' ({one_line(names)})'}: {one_line(hint)}")


def inform_of_interruption(consequence: str) -> None:
    """Print that Ctrl-C ended the command, and what is left or to do next, such as ``; run it again to resume``."""
    # The terminal has written ^C.
    inform(("\n" if streams.is_terminal(streams.ERR) else "") + "interrupted" + consequence)


def leave_unless_ok(exit_code: int) -> None:
    """Exit with a status unless it is 0."""
    if exit_code:
        raise typer.Exit(exit_code)


def _trust(_question: str) -> bool:
    return True


class ProgramScreen(Protocol):
    """The terminal, while a program on a server has it."""

    def announce(self, text: str, *, is_over: bool) -> bool:
        """Show a notice, and leave the program's screen intact; return False if no program has the terminal."""

    def released(self) -> AbstractContextManager[None]:
        """Give the terminal back for a moment, for a question to the user."""


class Console:
    """Shows the events of a command's workflows.

    On a terminal every server has a line that changes while its step is running; in a pipe every finished step is a
    line. Reports come from another thread.

    Args:
        verbose: 1: also show remote commands and internal steps; 2: also the log of the SSH library.
        accept_new_keys: Trust new host keys without asking.
        show_output: Show the output of steps.
        activity: Text to show on a terminal while no step is running; empty if the command prints meanwhile.
        only_changes: Show no steps of a server where every step was up to date.

    Attributes:
        screen: The terminal for a program on a server; None for a command that starts none.
    """

    screen: ProgramScreen | None = None

    def __init__(
        self,
        *,
        verbose: int = 0,
        accept_new_keys: bool = False,
        show_output: bool = False,
        activity: str = "",
        only_changes: bool = False,
    ) -> None:
        self._verbose = verbose
        self._accepts_new_keys = accept_new_keys
        self._only_changes = only_changes and not verbose
        # The unchanged steps of each server; None once a step had something to do.
        self._held_back: dict[str, list[StepEnded] | None] = {}
        self._show_output = show_output
        self._steps: Steps = _running_steps(activity)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        if verbose >= SSH_LOG_VERBOSITY:
            _show_ssh_log()
        else:
            # asyncio warns about sockets and programs that our own errors cover.
            logging.getLogger("asyncio").setLevel(logging.ERROR)

    @property
    def hooks(self) -> remote_tool.Hooks:
        """The callbacks of a workspace that reports to this console."""
        return remote_tool.Hooks(
            report=self.report,
            trace=self.trace if self._verbose else None,
            ask_password=self.ask_password if can_ask() else None,
            confirm=_trust if self._accepts_new_keys else self.confirm if can_ask() else None,
            adopt=self.confirm if can_ask() else None,
            allow=self.confirm if can_ask() else None,
        )

    @property
    def seconds(self) -> float:
        """Seconds since the command started."""
        return time.monotonic() - self._began

    def find_workspace(self) -> remote_tool.Workspace:
        """Find the workspace here or above; it reports to this console."""
        workspace = remote_tool.Workspace.find(hooks=self.hooks)
        return workspace.in_folder(_usual_workdir(workspace.root))

    def rebind(self, workspace: remote_tool.Workspace) -> remote_tool.Workspace:
        """Return a workspace that reports to this console; it still accepts new host keys if it did before."""
        self._accepts_new_keys |= workspace.hooks.confirm is _trust
        return remote_tool.Workspace(workspace.config, self.hooks)

    def __enter__(self) -> Self:
        self._steps.show()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._steps.hide()
            # A later password prompt must not be hidden by status lines.
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
        with self._hidden_steps():
            return ask_hidden(prompt)

    def confirm(self, question: str) -> bool:
        """Ask yes or no on the terminal, from any thread; no is the default."""
        with self._hidden_steps():
            return confirm_on_any_thread(question)

    @contextmanager
    def _hidden_steps(self) -> Iterator[None]:
        """Hide the steps, and give the terminal back, during a question."""
        with self._lock:
            self._steps.hide()
        try:
            with self.screen.released() if self.screen else nullcontext():
                yield
        finally:
            with self._lock:
                self._steps.show()

    def _draw(self, event: Event) -> None:
        match event:
            case StepStarted(server, step):
                self._steps.start(server, step)
            case StepProgress(server, _, text):
                self._steps.show_progress(server, text)
            case StepEnded(server):
                self._steps.end(server)
                self._show_end(event)
            case StepOutput(server, _, data) if self._show_output:
                for line in data.decode(errors="replace").replace("\r", "\n").splitlines():
                    say((f"{one_line(server)} | {escape_controls(line)}", "dim"))
            case Notice(server, text, is_over):
                text = _naming(server, text)
                if self.screen is None or not self.screen.announce(text, is_over=is_over):
                    say_wrapped((paragraph(text), "yellow"))

    def _show_end(self, event: StepEnded) -> None:
        if event.is_internal and not self._verbose and event.outcome is not Outcome.FAILED:
            return
        held_back = self._held_back.setdefault(event.server, [] if self._only_changes else None)
        if held_back is not None and event.outcome is Outcome.UNCHANGED:
            held_back.append(event)
            return
        for ended in (*(held_back or ()), event):
            say_wrapped(*_ended_line(ended))
        self._held_back[event.server] = None


class Steps(Protocol):
    """Shows the running step of each server."""

    def show(self) -> None: ...
    def hide(self) -> None: ...
    def start(self, server: str, step: str) -> None: ...
    def show_progress(self, server: str, text: str) -> None: ...
    def end(self, server: str) -> None: ...


class _PipedSteps:
    """Prints the progress of long steps at intervals, for a pipe."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._steps: dict[str, str] = {}
        self._began: dict[str, float] = {}

    def show(self) -> None: ...
    def hide(self) -> None: ...

    def start(self, server: str, step: str) -> None:
        self._steps[server] = step
        self._began[server] = time.monotonic()
        self._next[server] = self._began[server] + FIRST_PROGRESS

    def show_progress(self, server: str, text: str) -> None:
        if server in self._steps and time.monotonic() >= self._next[server]:
            self._next[server] = time.monotonic() + NEXT_PROGRESS
            text = text or f"running for {time.monotonic() - self._began[server]:.0f} s"
            say(one_line(f"{server}: {self._steps[server]}: {text}"))

    def end(self, server: str) -> None:
        self._steps.pop(server, None)


class _NoSteps:
    """Shows nothing."""

    def show(self) -> None: ...
    def hide(self) -> None: ...
    def start(self, server: str, step: str) -> None: ...
    def show_progress(self, server: str, text: str) -> None: ...
    def end(self, server: str) -> None: ...


def _running_steps(activity: str) -> Steps:
    if not streams.is_terminal(streams.ERR):
        return _PipedSteps()
    from remote_tool.cli.output.progress import RunningSteps  # noqa: PLC0415 - in a pipe Rich need not load

    return RunningSteps(activity)


def _ended_line(event: StepEnded) -> tuple[str | tuple[str, str], ...]:
    """Return ``gpu1: rsync: done (0.3 s), sent 3 files``."""
    seconds = "" if event.outcome is Outcome.UNCHANGED else f" ({event.seconds:.1f} s)"
    detail = event.detail.removeprefix(f"{event.server}: ")
    detail = f", {detail}" if detail else ""
    return (
        f"{one_line(event.server)}: {one_line(event.step)}: ",
        (event.outcome.value, STYLES[event.outcome]),
        one_line(f"{seconds}{detail}"),
    )


class _SshLog(logging.Handler):
    """Prints the log of the SSH library, escaped, as it quotes servers."""

    def emit(self, record: logging.LogRecord) -> None:
        say((one_line(f"{record.name}: {record.getMessage()}"), "dim"))


def _show_ssh_log() -> None:
    log = logging.getLogger("asyncssh")
    log.setLevel(logging.DEBUG)
    log.addHandler(_SshLog())
    log.propagate = False
