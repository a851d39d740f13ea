"""Run steps on one server, with progress, a complete log, and a hint if one fails."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.config.servers import Internet
from remote_tool.environments.cause import NO_INDEX, cause_of, hint_from_output
from remote_tool.environments.step import REFUSED, guarded
from remote_tool.errors import EnvironmentSetupError, JobError, RemoteToolError
from remote_tool.transport.host import Stream
from remote_tool.workflows.agent_client import NoPythonError
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepOutput, StepProgress, StepStarted
from remote_tool.workflows.step_logs import StepLog, shown_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from remote_tool.config.model import Config
    from remote_tool.environments.facts import ServerFacts
    from remote_tool.environments.step import Step
    from remote_tool.transport.host import Exit, Host
    from remote_tool.workflows.events import Report
    from remote_tool.workflows.internet.way_out import WayOut

TIMED_OUT = 124
# An installer may print nothing for minutes.
SIGN_OF_LIFE_SECONDS = 1.0
# Lines shown of an output that does not explain the failure.
SHOWN_LINES = 5
_NOTICE = re.compile(r"^notice: (?P<text>.*)$", re.MULTILINE)
_REFUSED = re.compile(r"^refused: (?P<why>.*?)(?:\nhint: (?P<hint>[^\n]*))?$", re.MULTILINE)


@dataclass(frozen=True)
class StepResult:
    """The result of a step.

    Attributes:
        step: Its name.
        outcome: Done or unchanged; a failing step raises.
        detail: The result, in a few words.
        seconds: Its duration.
    """

    step: str
    outcome: Outcome
    detail: str
    seconds: float


class StepFailedError(EnvironmentSetupError):
    """The script of a step failed.

    Attributes:
        status: Its exit status, 0 to 255; 128 if a signal ended it.
    """

    def __init__(self, message: str, *, hint: str, server: str, status: int) -> None:
        super().__init__(message, hint=hint, server=server)
        self.status = status


@dataclass
class ServerWork:
    """The preparation of one server: its facts, and the results of its steps so far.

    Attributes:
        host: The server.
        config: The configuration.
        report: Receives events.
        facts: The server's facts when last queried.
        download_lock: Shared by all servers: a file is downloaded here once.
        allow: Asks the user whether servers may reach a host through this machine.
        reported_texts: Shared by all servers: messages about the project reported so far.
        results: The results of the steps so far.
        warnings: Messages that are not failures.
        follows: The server that has done the work in the folder that both share, or empty.
        adopts: Whether the user shares a folder to which only another workspace has sent files.
    """

    host: Host
    config: Config
    report: Report
    facts: ServerFacts
    download_lock: asyncio.Lock
    allow: Callable[[str], Awaitable[bool]]
    reported_texts: set[str] = field(default_factory=set)
    results: list[StepResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    follows: str = ""
    adopts: bool = False

    @property
    def server(self) -> str:
        return self.host.name

    async def run(self, step: Step, *, detail: str = "", describe: Callable[[], Awaitable[str]] | None = None) -> None:
        """Run a step on the server; its result is ``detail``, or the answer of ``describe`` after the step.

        Raises:
            StepFailedError: It failed; the message includes the reason, if it is known.
            ConnectionLostError: The connection was lost; the server ends the step.
        """
        with (
            self.reported(step.name) as done,
            self._reporting_life(step.name),
            StepLog(self.config.local, self.server, step.name) as log,
        ):
            async with self._way_out() as way:
                try:
                    async with asyncio.timeout(step.timeout):
                        ended = await self._stream(step, log, {} if way is None else way.variables)
                except TimeoutError:
                    minutes = step.timeout / 60
                    raise self._failure(step, log, f"did not finish within {minutes:.0f} minutes", TIMED_OUT) from None
            if ended.status != 0:
                status = 128 if ended.status is None else ended.status
                problem = "" if way is None else way.problem
                raise self._failure(step, log, f"failed with {_describe_exit(ended)}", status, problem)
            for notice in _NOTICE.finditer("\n".join(log.last_lines)):
                self.report(Notice(self.server, notice["text"]))
            # The result of "Installing uv" is "uv".
            found = await describe() if describe else detail or step.title.partition(" ")[2]
            done(f"{found}, {way.carried}" if way is not None and way.carried else found)

    async def do(
        self, name: str, work: Callable[[], Awaitable[tuple[Outcome, str]]], *, is_internal: bool = False
    ) -> None:
        """Run a step that is more than a script, and returns its outcome and detail."""
        with self.reported(name, is_internal=is_internal) as done:
            outcome, detail = await work()
            done(detail, outcome)

    def report_once(self, text: str) -> None:
        """Report a fact about the project, unless this has been done for another server."""
        if text not in self.reported_texts:
            self.reported_texts.add(text)
            self.report(Notice("", text))

    def unchanged(self, name: str, detail: str, *, is_internal: bool = False) -> None:
        """Report that a step was up to date."""
        self._end(StepEnded(self.server, name, Outcome.UNCHANGED, detail, is_internal=is_internal))

    @contextmanager
    def reported(self, name: str, *, is_internal: bool = False) -> Iterator[Callable[..., None]]:
        """Report the start and end of a step; the caller calls the yielded function when the step is done."""
        began = time.monotonic()
        self.report(StepStarted(self.server, name))

        def done(detail: str, outcome: Outcome = Outcome.DONE) -> None:
            self._end(StepEnded(self.server, name, outcome, detail, time.monotonic() - began, is_internal))

        try:
            yield done
        except RemoteToolError as error:
            first_line = error.message.partition("\n")[0]
            self.report(StepEnded(self.server, name, Outcome.FAILED, first_line, time.monotonic() - began))
            raise

    @contextmanager
    def _reporting_life(self, name: str) -> Iterator[None]:
        async def report_repeatedly() -> None:
            while True:
                await asyncio.sleep(SIGN_OF_LIFE_SECONDS)
                self.report(StepProgress(self.server, name, ""))

        task = asyncio.create_task(report_repeatedly())
        try:
            yield
        finally:
            task.cancel()

    def _end(self, ended: StepEnded) -> None:
        self.results.append(StepResult(ended.step, ended.outcome, ended.detail, ended.seconds))
        self.report(ended)

    @asynccontextmanager
    async def _way_out(self) -> AsyncIterator[WayOut | None]:
        """Open the way out of a server that has none; not before it has a Python."""
        async with AsyncExitStack() as stack:
            way = None
            if self.config.internet_of(self.server) is Internet.THROUGH_ME:
                from remote_tool.workflows.internet.way_out import way_out  # noqa: PLC0415 - seldom needed

                try:
                    way = await stack.enter_async_context(way_out(self.host, self.config, self.allow))
                except NoPythonError:
                    pass  # this step may bring one
                except JobError as error:
                    self.report(Notice(self.server, f"no way out through this machine: {error.message}"))
            yield way

    async def _stream(self, step: Step, log: StepLog, more: Mapping[str, str]) -> Exit:
        variables = {**self.config.variables_of(self.server), **more}
        script = guarded(step, self.config.remote.scripts, variables)
        async with self.host.open(script, label=step.title) as channel:

            async def copy(stream: Stream) -> None:
                while data := await channel.read(stream):
                    self._report_output(step, log.write(data, stream))

            # A TaskGroup would wrap a connection error; gather passes it on, and closing ends the other task.
            await asyncio.gather(copy(Stream.OUT), copy(Stream.ERR))
            self._report_output(step, log.end())
            return await channel.wait()

    def _report_output(self, step: Step, data: bytes) -> None:
        if data:
            self.report(StepOutput(self.server, step.name, data))

    def _failure(self, step: Step, log: StepLog, ending: str, status: int, problem: str = "") -> StepFailedError:
        """Return the error of a failed step; ``problem``: why a host could not be reached through this machine."""
        where = f"full output: {shown_path(log.path, self.config.local)}"
        refused = _REFUSED.search("\n".join(log.last_lines))
        if status == REFUSED and refused:
            return StepFailedError(
                f"{self.server}: {refused['why']}", hint=refused["hint"] or where, server=self.server, status=status
            )
        cause = "" if status == TIMED_OUT else cause_of(log.tail.replace(b"\r", b"\n").decode(errors="replace"))
        lines = [] if cause else log.last_lines[-SHOWN_LINES:]
        below = "".join(f"\n  {line}" for line in [*lines, where])
        version, kind = self.config.python_version, self.config.environment.kind
        is_direct = self.config.internet_of(self.server) is Internet.DIRECT
        hint = hint_from_output(self.facts, log.tail, version=version, kind=kind, is_direct=is_direct)
        return StepFailedError(
            f"{self.server}: {step.title} {f'failed: {cause}' if cause else ending}{below}",
            hint=f"through this machine: {problem}" if problem and (not hint or hint.startswith(NO_INDEX)) else hint,
            server=self.server,
            status=status,
        )


def _describe_exit(ended: Exit) -> str:
    return f"status {ended.status}" if ended.status is not None else f"signal {ended.signal}"
